package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// Images that the cluster has besides Lateen's. The names are those that an installation of Velero asks for.
const (
	pauseImage  = "localhost/pause:v1"
	toolsImage  = "localhost/tools:v1"
	csiImage    = "localhost/csi:v1"
	veleroImage = "docker.io/velero/velero:v1.18.3"
	pluginImage = "docker.io/velero/velero-plugin-for-aws:v1.14.3"
)

// image is what bin/image reads.
type image struct {
	Name       string   `json:"name"`
	Platform   string   `json:"platform"`
	Files      []file   `json:"files"`
	Entrypoint []string `json:"entrypoint"`
	User       string   `json:"user"`
	Env        []string `json:"env"`
}

type file struct {
	Path      string `json:"path"`
	Source    string `json:"source,omitempty"`
	Content   []byte `json:"content,omitempty"`
	Link      string `json:"link,omitempty"`
	Directory bool   `json:"directory,omitempty"`
	Mode      int64  `json:"mode"`
}

// images are the archives of all images. Those that are for the cluster alone are written first, into bin/images, where they
// stay for the next cluster.
func (m *machine) images(ctx context.Context) ([]string, error) {
	archives := []string{m.program("cluster-image.tar")}
	all, err := m.specs(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(m.program("images"), 0o755); err != nil {
		return nil, err
	}
	for name, spec := range all {
		spec.Platform = "linux/amd64"
		archive := m.program("images/" + name + ".tar")
		archives = append(archives, archive)
		if err := m.archive(ctx, spec, archive); err != nil {
			return nil, fmt.Errorf("write %s: %w", spec.Name, err)
		}
	}
	return archives, nil
}

// archive writes the archive of an image, unless there is one that is younger than the image's files.
func (m *machine) archive(ctx context.Context, spec image, archive string) error {
	content, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	written, err := os.ReadFile(archive + ".json")
	if err == nil && bytes.Equal(written, content) && !changedSince(archive, spec.sources(m.program("image"))) {
		return nil
	}
	if err := os.WriteFile(archive+".json", content, 0o644); err != nil {
		return err
	}
	draft := archive + ".new"
	if output, err := exec.CommandContext(ctx, m.program("image"), "write", archive+".json", draft).CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, output)
	}
	return os.Rename(draft, archive)
}

// sources are what the archive is made of, and with.
func (i image) sources(writer string) []string {
	all := []string{writer}
	for _, each := range i.Files {
		if each.Source != "" {
			all = append(all, each.Source)
		}
	}
	return all
}

// changedSince says whether one of the files is younger than the archive, or either is not there.
func changedSince(archive string, files []string) bool {
	then, err := os.Stat(archive)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(files, func(each string) bool {
		now, err := os.Stat(each)
		return err != nil || now.ModTime().After(then.ModTime())
	})
}

func (m *machine) specs(ctx context.Context) (map[string]image, error) {
	busybox := m.debian("bin/busybox")
	applets, err := exec.CommandContext(ctx, busybox, "--list").Output()
	if err != nil {
		return nil, err
	}
	shell := []file{m.copy("/bin/busybox", busybox), {Path: "/tmp", Directory: true, Mode: 0o1777}}
	for applet := range strings.FieldsSeq(string(applets)) {
		if applet != "busybox" {
			shell = append(shell, file{Path: "/bin/" + applet, Link: "busybox"})
		}
	}
	with := func(more ...file) []file { return append(append([]file{}, shell...), more...) }
	path := []string{"PATH=/bin"}
	forever := []string{"/bin/sleep", "1000000000"}
	return map[string]image{
		"pause": {Name: pauseImage, Files: shell, Entrypoint: forever, User: "65535:65535"},
		"tools": {Name: toolsImage, Files: shell, Entrypoint: []string{"/bin/sh"}, Env: path},
		"csi": {Name: csiImage, Env: path, Files: with(
			m.copy("/csi-driver", m.program("csi-driver")), m.copy("/csi-provisioner", m.program("csi-provisioner")),
			m.copy("/csi-snapshotter", m.program("csi-snapshotter")), m.copy("/csi-attacher", m.program("csi-attacher")),
		)},
		"velero": {Name: veleroImage, Entrypoint: nil, User: "1002:1000", Env: []string{"HOME=/home/cnb"}, Files: []file{
			m.copy("/velero", m.program("velero")), m.copy("/velero-restore-helper", m.program("velero-restore-helper")),
			{Path: "/tmp", Directory: true, Mode: 0o1777}, {Path: "/home/cnb", Directory: true, Mode: 0o1777},
		}},
		"plugin": {
			Name: pluginImage, User: "65532:65532", Env: path,
			Files:      with(m.copy("/plugins/velero-plugin-for-aws", m.program("velero-plugin-for-aws"))),
			Entrypoint: []string{"/bin/cp", "/plugins/velero-plugin-for-aws", "/target/"},
		},
	}, nil
}

// copy is a program of the machine in an image. The source may be a link.
func (m *machine) copy(path, source string) file {
	if target, err := os.Readlink(source); err == nil {
		source = target
	}
	return file{Path: path, Source: source, Mode: 0o755}
}
