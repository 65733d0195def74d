// Command image writes container images without an engine: Lateen's for all platforms, and those that a test cluster needs.
// The same input gives the same digests.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	commands := map[string]func([]string) error{"lateen": lateen, "write": write, "push": push}
	if len(args) > 0 && commands[args[0]] != nil {
		return commands[args[0]](args[1:])
	}
	return errors.New("usage: image lateen|push [flags], image write SPEC.json ARCHIVE")
}

// lateen writes Lateen's image for all platforms, of the binaries lateen-OS-ARCH in a directory.
func lateen(args []string) error {
	flags := flag.NewFlagSet("lateen", flag.ContinueOnError)
	binaries := flags.String("binaries", "bin", "directory of the binaries lateen-OS-ARCH")
	version := flags.String("version", "unknown", "value of the label org.opencontainers.image.version")
	name := flags.String("name", "lateen:latest", "name of the image")
	platforms := flags.String("platforms", "linux/amd64,linux/arm64", "platforms, separated by commas")
	windowsBase := flags.String("windows-base", "", "image in a registry that the one for Windows is based on; required for it")
	layout := flags.String("layout", "bin/image", "directory that becomes an OCI layout; it is replaced")
	archive := flags.String("archive", "bin/image.tar", "file that becomes an archive of the layout")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var images []v1.Image
	for platform := range strings.SplitSeq(*platforms, ",") {
		binary := filepath.Join(*binaries, "lateen-"+strings.ReplaceAll(platform, "/", "-"))
		spec := lateenSpec(platform, binary, *version)
		if isWindows(platform) {
			if *windowsBase == "" {
				return fmt.Errorf("build image for %s: it would not run without a base; set --windows-base", platform)
			}
			spec.Base = *windowsBase
		}
		image, err := build(spec)
		if err != nil {
			return fmt.Errorf("build image for %s: %w", platform, err)
		}
		images = append(images, image)
	}
	if err := writeLayout(*layout, *name, images); err != nil {
		return fmt.Errorf("write layout %s: %w", *layout, err)
	}
	return writeArchive(*layout, *archive)
}

// write writes the archive of one image as a JSON file specifies it.
func write(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: image write SPEC.json ARCHIVE")
	}
	content, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	var spec Spec
	if err := json.Unmarshal(content, &spec); err != nil {
		return fmt.Errorf("parse %s: %w", args[0], err)
	}
	image, err := build(spec)
	if err != nil {
		return fmt.Errorf("build %s: %w", spec.Name, err)
	}
	layout, err := os.MkdirTemp("", "lateen-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(layout)
	if err := writeLayout(layout, spec.Name, []v1.Image{image}); err != nil {
		return fmt.Errorf("write layout of %s: %w", spec.Name, err)
	}
	return writeArchive(layout, args[1])
}
