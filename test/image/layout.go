package main

import (
	"archive/tar"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

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
