// Command release packs built programs for operators to download: an archive, an SBOM and an entry of the krew manifest for
// each platform. The same programs give the same bytes. It builds and uploads nothing.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
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
