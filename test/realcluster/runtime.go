package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"github.com/lateen-project/lateen/test/cluster"
)

// Accounts of the cluster's S3 server, and its address for pods: http://10.10.0.1:9000. Its bucket is "backups".
const (
	s3Key    = "lateen"
	s3Secret = "lateen-secret"
	s3Region = "minio"
)

//go:embed files/containerd.toml
var containerdConfig string

//go:embed files/cni.json
var cniConfig string

//go:embed files/kubelet.yaml
var kubeletConfig string

//go:embed files/kube-proxy.yaml
var proxyConfig string

//go:embed files/storage.yaml
var storage string

//go:embed files/classes.yaml
var classes string

// configure writes all configuration files. They are templates of the directories and addresses.
func (m *machine) configure() error {
	values := map[string]string{
		"Dir": m.dir, "Debian": m.debian(""), "Node": m.name, "Pods": m.pods, "Address": m.address, "CA": m.ca, "Pause": pauseImage, "CSI": csiImage,
	}
	for path, text := range map[string]string{
		"containerd.toml": containerdConfig, "cni/10-pods.conflist": cniConfig, "kubelet.yaml": kubeletConfig,
		"kube-proxy.yaml": proxyConfig, "storage.yaml": storage, "classes.yaml": classes,
	} {
		parsed, err := template.New(path).Parse(text)
		if err != nil {
			return err
		}
		var content strings.Builder
		if err := parsed.Execute(&content, values); err != nil {
			return err
		}
		if err := m.write(content.String(), path); err != nil {
			return err
		}
	}
	return m.write("", "resolv.conf")
}

// startRuntime starts containerd, and brings the images in.
func (m *machine) startRuntime(ctx context.Context) error {
	if err := m.configure(); err != nil {
		return err
	}
	archives, err := m.images(ctx)
	if err != nil {
		return fmt.Errorf("write the images: %w", err)
	}
	if err := m.services.start("containerd", m.program("containerd"), "--config="+m.path("containerd.toml")); err != nil {
		return err
	}
	if err := untilAnswers(ctx, m, "version"); err != nil {
		return err
	}
	imported := m.path("imported") // A node that boots again has its images.
	if _, err := os.Stat(imported); err == nil {
		return nil
	}
	for _, archive := range archives {
		if err := m.ctr(ctx, "images", "import", archive); err != nil {
			return err
		}
	}
	return os.WriteFile(imported, nil, 0o600)
}

// answerInterval is how often containerd is asked while it starts.
const answerInterval = 50 * time.Millisecond

func untilAnswers(ctx context.Context, m *machine, args ...string) error {
	tick := time.NewTicker(answerInterval)
	defer tick.Stop()
	for {
		err := m.ctr(ctx, args...)
		if err == nil {
			return nil
		}
		if failed := m.services.failed(); failed != nil {
			return failed
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

func (m *machine) ctr(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, m.program("ctr"), append([]string{"--namespace=k8s.io"}, args...)...)
	command.Env = m.environment()
	if output, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("ctr %v: %w: %s", args, err, output)
	}
	return nil
}

// identify writes the kubeconfigs of a node's kubelet and kube-proxy, each with an identity of its own, into the directory of
// the node's options.
func (m *machine) identify(server string, o options, node string) error {
	for name, user := range map[string][]string{"kubelet": {"system:node:" + node, "system:nodes"}, "kube-proxy": {"system:kube-proxy"}} {
		config, err := m.plane.User(user[0], user[1:]...)
		if err != nil {
			return err
		}
		config.Host = server
		if err := cluster.WriteKubeconfig(config, o.path(name+".kubeconfig"), "default"); err != nil {
			return err
		}
	}
	return nil
}

// startKubelet starts the kubelet and kube-proxy.
func (m *machine) startKubelet() error {
	if err := os.MkdirAll(m.path("programs"), 0o755); err != nil {
		return err
	}
	for _, name := range []string{"kubelet", "kube-proxy"} {
		if err := unix.Symlink(m.program("kubenode"), m.path("programs", name)); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("link %s: %w", name, err)
		}
	}
	err := m.services.start("kubelet", m.path("programs", "kubelet"), "--config="+m.path("kubelet.yaml"),
		"--kubeconfig="+m.path("kubelet.kubeconfig"), "--node-ip="+m.address, "--hostname-override="+m.name, "--cert-dir="+m.path("pki"))
	if err != nil {
		return err
	}
	return m.services.start("kube-proxy", m.path("programs", "kube-proxy"), "--config="+m.path("kube-proxy.yaml"))
}
