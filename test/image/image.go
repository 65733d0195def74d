package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// certificates is where programs look for the certificate authorities that they trust.
const certificates = "/etc/ssl/certs/ca-certificates.crt"

// lateenSpec is Lateen's image, as the Dockerfile has it: the program, certificate authorities and a /tmp.
func lateenSpec(platform, binary, version string) Spec {
	spec := Spec{
		Platform: platform,
		Compress: true,
		Labels: map[string]string{
			"org.opencontainers.image.title":       "lateen",
			"org.opencontainers.image.description": "Node agent for Velero",
			"org.opencontainers.image.licenses":    "Apache-2.0",
			"org.opencontainers.image.version":     version,
		},
	}
	if isWindows(platform) {
		spec.Files = []File{{Path: "/lateen.exe", Source: binary + ".exe", Mode: 0o755}}
		spec.User, spec.Entrypoint = "ContainerUser", []string{"/lateen.exe"}
		return spec
	}
	spec.Files = []File{
		{Path: "/lateen", Source: binary, Mode: 0o755},
		{Path: "/velero", Link: "lateen"}, // the program of Velero's DaemonSet, whose image alone may be replaced
		{Path: certificates, Content: roots(), Mode: 0o644},
		{Path: "/tmp", Directory: true, Mode: 0o1777},
	}
	spec.User, spec.Entrypoint = "65532:65532", []string{"/lateen"}
	return spec
}

func isWindows(platform string) bool { return strings.HasPrefix(platform, "windows/") }

// roots are Mozilla's certificate authorities as PEM. Those that are trusted for a part of their certificates only are left
// out, because a PEM file cannot say so.
func roots() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			all.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return all.Bytes()
}

// writeLayout replaces dir with an OCI layout of one index under name, which has an image for each platform.
func writeLayout(dir, image string, images []v1.Image) error {
	reference, err := name.ParseReference(image, name.WithDefaultRegistry(""))
	if err != nil {
		return err
	}
	full, err := name.ParseReference(image)
	if err != nil {
		return err
	}
	platforms := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, each := range images {
		config, err := each.ConfigFile()
		if err != nil {
			return err
		}
		platforms = mutate.AppendManifests(platforms, mutate.IndexAddendum{Add: each, Descriptor: v1.Descriptor{Platform: config.Platform()}})
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	top, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	return top.AppendIndex(platforms, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": reference.Identifier(),
		"io.containerd.image.name":          strings.Replace(full.Name(), name.DefaultRegistry, "docker.io", 1),
	}))
}

// writeArchive writes the layout as a tar file, which `ctr images import`, `docker load` and `podman load` read.
func writeArchive(dir, path string) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	archive := tar.NewWriter(file)
	err = filepath.WalkDir(dir, func(each string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		inside, err := filepath.Rel(dir, each)
		if err != nil {
			return err
		}
		return add(archive, File{Path: filepath.ToSlash(inside), Source: each, Mode: 0o644})
	})
	if err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return file.Close()
}

// push sends the image of a layout to the registry that its name has.
func push(args []string) error {
	flags := flag.NewFlagSet("push", flag.ContinueOnError)
	dir := flags.String("layout", "bin/image", "directory of the OCI layout")
	image := flags.String("name", "", "name of the image, with the registry")
	if err := flags.Parse(args); err != nil {
		return err
	}
	reference, err := name.ParseReference(*image)
	if err != nil {
		return err
	}
	top, err := layout.ImageIndexFromPath(*dir)
	if err != nil {
		return fmt.Errorf("read layout %s: %w", *dir, err)
	}
	manifest, err := top.IndexManifest()
	if err != nil {
		return err
	}
	if len(manifest.Manifests) != 1 {
		return fmt.Errorf("layout %s has %d images instead of one", *dir, len(manifest.Manifests))
	}
	index, err := top.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		return err
	}
	return remote.WriteIndex(reference, index, remote.WithAuthFromKeychain(authn.DefaultKeychain))
}

// baseOf gets the base image of a registry for a platform; it is checked by its digest as it is read.
func baseOf(base string, platform v1.Platform) (v1.Image, error) {
	if base == "" {
		return scratch(), nil
	}
	reference, err := name.ParseReference(base)
	if err != nil {
		return nil, err
	}
	return remote.Image(reference, remote.WithPlatform(platform), remote.WithAuthFromKeychain(authn.DefaultKeychain))
}

// Spec is an image for one platform: one layer on its base.
type Spec struct {
	Name       string            `json:"name"`
	Platform   string            `json:"platform"` // OS/ARCH
	Base       string            `json:"base"`     // reference in a registry; empty is scratch
	Files      []File            `json:"files"`
	Entrypoint []string          `json:"entrypoint"`
	User       string            `json:"user"`
	Env        []string          `json:"env"` // NAME=VALUE
	Labels     map[string]string `json:"labels"`
	Compress   bool              `json:"compress"` // slow, and worth it only for what a network carries
}

// File is a file, a symbolic link or an empty directory of an image; directories above it come by themselves.
type File struct {
	Path      string `json:"path"`
	Source    string `json:"source"` // path of the file that it is a copy of
	Content   []byte `json:"content"`
	Link      string `json:"link"` // target of a symbolic link
	Directory bool   `json:"directory"`
	Mode      int64  `json:"mode"` // as of chmod(1), setuid and sticky bits included
}

// build makes the image of the files as they are now.
func build(spec Spec) (v1.Image, error) {
	platform, err := v1.ParsePlatform(spec.Platform)
	if err != nil {
		return nil, err
	}
	layer, err := layerOf(spec)
	if err != nil {
		return nil, fmt.Errorf("pack layer: %w", err)
	}
	base, err := baseOf(spec.Base, *platform)
	if err != nil {
		return nil, fmt.Errorf("get base image %s: %w", spec.Base, err)
	}
	image, err := mutate.AppendLayers(base, layer)
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = platform.OS, platform.Architecture
	config.Config.Entrypoint, config.Config.User = spec.Entrypoint, spec.User
	config.Config.Env = append(config.Config.Env, spec.Env...)
	config.Config.Labels = spec.Labels
	return mutate.ConfigFile(image, config)
}

func layerOf(spec Spec) (v1.Layer, error) {
	if spec.Compress {
		open := func() (io.ReadCloser, error) { return pack(spec), nil }
		return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	}
	content, err := io.ReadAll(pack(spec))
	if err != nil {
		return nil, err
	}
	return static.NewLayer(content, types.OCIUncompressedLayer), nil
}

// scratch is an empty image with OCI's media types.
func scratch() v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
}

// pack is a layer as a tar stream: sorted, of root, without times, so that the same files give the same bytes.
func pack(spec Spec) io.ReadCloser {
	reader, writer := io.Pipe()
	go func() {
		archive := tar.NewWriter(writer)
		for _, file := range entries(spec) {
			if err := add(archive, file); err != nil {
				writer.CloseWithError(fmt.Errorf("add %s: %w", file.Path, err))
				return
			}
		}
		writer.CloseWithError(archive.Close())
	}()
	return reader
}

// entries are the files and the directories above them, sorted, with names as a layer has them.
func entries(spec Spec) []File {
	all := map[string]File{}
	prefix := ""
	if isWindows(spec.Platform) {
		prefix = "Files/" // A layer for Windows has the registry's hives beside its files.
	}
	for _, file := range spec.Files {
		file.Path = prefix + strings.TrimPrefix(path.Clean(file.Path), "/")
		all[file.Path] = file
		for dir := path.Dir(file.Path); dir != "."; dir = path.Dir(dir) {
			if _, exists := all[dir]; !exists {
				all[dir] = File{Path: dir, Directory: true, Mode: 0o755}
			}
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
}

func add(archive *tar.Writer, file File) error {
	header := &tar.Header{Name: file.Path, Mode: file.Mode, Typeflag: tar.TypeReg, Format: tar.FormatPAX}
	if file.Directory {
		header.Name, header.Typeflag = file.Path+"/", tar.TypeDir
		return archive.WriteHeader(header)
	}
	if file.Link != "" {
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, file.Link, 0o777
		return archive.WriteHeader(header)
	}
	var content io.Reader = bytes.NewReader(file.Content)
	header.Size = int64(len(file.Content))
	if file.Source != "" {
		source, err := os.Open(file.Source)
		if err != nil {
			return err
		}
		defer source.Close()
		info, err := source.Stat()
		if err != nil {
			return err
		}
		content, header.Size = source, info.Size()
	}
	if err := archive.WriteHeader(header); err != nil {
		return err
	}
	_, err := io.Copy(archive, content)
	return err
}
