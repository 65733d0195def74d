// Command release packs built programs for operators to download: an archive, an SBOM and an entry of the krew manifest for
// each platform. The same programs give the same bytes. It builds and uploads nothing.
package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
	"sigs.k8s.io/yaml"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// options of one release.
type options struct {
	version   string    // such as v0.1.0
	date      time.Time // of the commit; the time of everything in the archives
	binaries  string    // directory of the programs lateen-OS-ARCH, with .exe for Windows
	into      string    // directory of the release
	platforms []string  // such as linux/amd64
	beside    []string  // files that each archive has, too
	download  string    // URL of the directory that the archives will be in
}

func run(args []string) error {
	flags := flag.NewFlagSet("release", flag.ContinueOnError)
	version := flags.String("version", "", "version of the release, such as v0.1.0")
	date := flags.String("date", "", "date of the commit in RFC 3339")
	binaries := flags.String("binaries", "bin", "directory of the programs lateen-OS-ARCH")
	into := flags.String("into", "dist", "directory of the release")
	platforms := flags.String("platforms", "", "platforms of the archives, separated by commas")
	beside := flags.String("beside", "LICENSE,README.md", "files that each archive has, too, separated by commas")
	download := flags.String("download", "", "URL of the directory that the archives will be in, for the krew manifest")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *version == "" || *platforms == "" {
		return errors.New("--version and --platforms are required")
	}
	at, err := time.Parse(time.RFC3339, *date)
	if err != nil {
		return fmt.Errorf("parse --date: %w", err)
	}
	return pack(options{
		version: *version, date: at.UTC(), binaries: *binaries, into: *into, platforms: strings.Split(*platforms, ","),
		beside: strings.Split(*beside, ","), download: *download,
	})
}

func pack(o options) error {
	var plugins []plugin
	for _, platform := range o.platforms {
		system, architecture, ok := strings.Cut(platform, "/")
		if !ok {
			return fmt.Errorf("platform %q is not like linux/amd64", platform)
		}
		program := filepath.Join(o.binaries, "lateen-"+system+"-"+architecture)
		name := fmt.Sprintf("lateen_%s_%s_%s", strings.TrimPrefix(o.version, "v"), system, architecture)
		inside, suffix, write := "lateen", ".tar.gz", tarball
		if system == "windows" {
			program, inside, suffix, write = program+".exe", "lateen.exe", ".zip", zipped
		}
		entries := []entry{{name: inside, source: program, mode: 0o755}}
		for _, file := range o.beside {
			entries = append(entries, entry{name: filepath.Base(file), source: file, mode: 0o644})
		}
		archive := filepath.Join(o.into, name+suffix)
		if err := write(archive, o.date, entries); err != nil {
			return fmt.Errorf("write %s: %w", archive, err)
		}
		if err := writeSBOM(filepath.Join(o.into, name+".spdx.json"), program, o); err != nil {
			return fmt.Errorf("write SBOM of %s: %w", program, err)
		}
		plugins = append(plugins, plugin{system: system, architecture: architecture, archive: archive, program: inside})
	}
	if err := writeKrew(filepath.Join(o.into, "lateen.krew.yaml"), plugins, o); err != nil {
		return fmt.Errorf("write manifest of krew: %w", err)
	}
	return nil
}

// entry is a file of an archive.
type entry struct {
	name, source string
	mode         int64
}

// tarball writes a tar.gz whose entries belong to root and are as old as date.
func tarball(path string, date time.Time, entries []entry) error {
	return create(path, func(file io.Writer) error {
		compressed := gzip.NewWriter(file)
		archive := tar.NewWriter(compressed)
		for _, each := range entries {
			content, err := os.ReadFile(each.source)
			if err != nil {
				return err
			}
			header := &tar.Header{Name: each.name, Mode: each.mode, Size: int64(len(content)), ModTime: date, Format: tar.FormatUSTAR}
			if err := archive.WriteHeader(header); err != nil {
				return err
			}
			if _, err := archive.Write(content); err != nil {
				return err
			}
		}
		if err := archive.Close(); err != nil {
			return err
		}
		return compressed.Close()
	})
}

// zipped writes a zip whose entries are as old as date.
func zipped(path string, date time.Time, entries []entry) error {
	return create(path, func(file io.Writer) error {
		archive := zip.NewWriter(file)
		for _, each := range entries {
			content, err := os.ReadFile(each.source)
			if err != nil {
				return err
			}
			header := &zip.FileHeader{Name: each.name, Method: zip.Deflate, Modified: date}
			header.SetMode(os.FileMode(each.mode)) //nolint:gosec // 0644 and 0755
			into, err := archive.CreateHeader(header)
			if err != nil {
				return err
			}
			if _, err := into.Write(content); err != nil {
				return err
			}
		}
		return archive.Close()
	})
}

func sha256Of(path string) (string, error) {
	content, err := os.ReadFile(path)
	return fmt.Sprintf("%x", sha256.Sum256(content)), err
}

// create writes a file whole.
func create(path string, write func(io.Writer) error) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := write(file); err != nil {
		return err
	}
	return file.Close()
}

// plugin is one platform of the kubectl plugin.
type plugin struct {
	system, architecture string
	archive, program     string // the file, and the program in it
}

// writeKrew writes the manifest with which krew installs the archives as `kubectl lateen`.
func writeKrew(path string, plugins []plugin, o options) error {
	platforms := make([]any, 0, len(plugins))
	for _, each := range plugins {
		sum, err := sha256Of(each.archive)
		if err != nil {
			return err
		}
		platforms = append(platforms, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]string{"os": each.system, "arch": each.architecture}},
			"uri":      o.download + "/" + filepath.Base(each.archive),
			"sha256":   sum,
			"bin":      each.program,
		})
	}
	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin",
		"metadata": map[string]string{"name": "lateen"},
		"spec": map[string]any{
			"version": o.version, "homepage": "https://github.com/lateen-project/lateen",
			"shortDescription": "Watch and diagnose Velero's data movers",
			"description":      "Replaces Velero's node-agent by Lateen, shows running and waiting transfers, and explains why one waits or failed.",
			"platforms":        platforms,
		},
	})
	if err != nil {
		return err
	}
	return create(path, func(into io.Writer) error { _, err := into.Write(text); return err })
}

// unknown is what SPDX 2.3 has in place of a value that nobody asserts.
const unknown = "NOASSERTION"

// writeSBOM writes the modules that a Go program is built of, as the program itself names them, in the format of SPDX 2.3.
func writeSBOM(path, program string, o options) error {
	built, err := buildinfo.ReadFile(program)
	if err != nil {
		return err
	}
	sum, err := sha256Of(program)
	if err != nil {
		return err
	}
	top := spdxPackage("lateen", o.version, 0)
	top.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: sum}}
	top.PackageLicenseDeclared = "Apache-2.0"
	document := &spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT",
		DocumentName:      filepath.Base(path),
		DocumentNamespace: "https://" + built.Main.Path + "/spdx/" + sum,
		CreationInfo: &spdx.CreationInfo{
			Created:  o.date.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "lateen-release"}},
		},
		Packages:      []*spdx.Package{top},
		Relationships: []*spdx.Relationship{relationship("DOCUMENT", "DESCRIBES", top.PackageSPDXIdentifier)},
	}
	toolchain := &debug.Module{Path: "stdlib", Version: built.GoVersion}
	for i, module := range append([]*debug.Module{toolchain}, built.Deps...) {
		if module.Replace != nil {
			module = module.Replace
		}
		part := spdxPackage(module.Path, module.Version, i+1)
		document.Packages = append(document.Packages, part)
		document.Relationships = append(document.Relationships, relationship(top.PackageSPDXIdentifier, "CONTAINS", part.PackageSPDXIdentifier))
	}
	return create(path, func(into io.Writer) error { return json.Write(document, into, json.Indent("  ")) })
}

func spdxPackage(name, version string, number int) *spdx.Package {
	return &spdx.Package{
		PackageName: name, PackageVersion: version, PackageSPDXIdentifier: common.ElementID(fmt.Sprintf("Package-%d", number)),
		PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown, PackageCopyrightText: unknown,
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: "pkg:golang/" + name + "@" + version,
		}},
	}
}

func relationship(from common.ElementID, kind string, to common.ElementID) *spdx.Relationship {
	return &spdx.Relationship{
		RefA: common.DocElementID{ElementRefID: from}, Relationship: kind, RefB: common.DocElementID{ElementRefID: to},
	}
}
