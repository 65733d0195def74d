package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

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
	var sorted []File
	for _, file := range all {
		sorted = append(sorted, file)
	}
	slices.SortFunc(sorted, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return sorted
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
