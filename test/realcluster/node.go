package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/lateen-project/lateen/test/cluster"
)

// startTimeout bounds the start of the whole cluster.
const startTimeout = 3 * time.Minute

// machine is the node from within: it runs everything, and the cluster is over when it ends.
type machine struct {
	options
	host
	plane    *cluster.Cluster
	services *services
	outside  string // where the machine finds the API server
	begun    time.Time
}

// host is what differs between the nodes.
type host struct {
	name    string
	address string
	pods    string // their address range
	ca      string // file of the cluster's certificate authority
}

// done notes when a part of the start was done, for who wants to know where the time goes.
func (m *machine) done(part string) {
	if log, err := os.OpenFile(m.path("log", "start.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
		fmt.Fprintf(log, "%5.1f s: %s\n", time.Since(m.begun).Seconds(), part)
		log.Close()
	}
}

func node(o options) error {
	stopped, release := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer release()
	for _, inherited := range []int{readyFile, listenerFile} {
		syscall.CloseOnExec(inherited) // else the pipe would stay open as long as anything runs
	}
	listener, err := net.FileListener(os.NewFile(listenerFile, "listener"))
	if err != nil {
		return err
	}
	m := &machine{
		options: o, services: newServices(o), outside: o.args[0], begun: time.Now(),
		host: host{name: nodeName, address: nodeAddress, pods: podRange, ca: o.path("control", "ca.crt")},
	}
	m.services.worker = &worker{machine: m}
	begin, cancel := context.WithTimeout(stopped, startTimeout)
	defer cancel()
	if err := m.start(begin); err != nil {
		return err
	}
	go forward(stopped, listener, strings.TrimPrefix(m.plane.Admin().Host, "https://"))
	ready := os.NewFile(readyFile, "ready")
	if err := m.complete(begin); err != nil {
		return err
	}
	if _, err := io.WriteString(ready, "ready"); err != nil {
		return err
	}
	if err := ready.Close(); err != nil {
		return err
	}
	return m.services.wait(stopped)
}

// start brings everything up to a kubelet that runs pods.
func (m *machine) start(ctx context.Context) error {
	if err := mountAll(m.options, m.path("csi")); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(nodeName)); err != nil {
		return err
	}
	if err := setUpNetwork(ctx); err != nil {
		return err
	}
	side, ctx := errgroup.WithContext(ctx)
	side.Go(func() error { return m.startPlane(ctx) })
	side.Go(func() error { return m.startRuntime(ctx) })
	if err := side.Wait(); err != nil {
		return err
	}
	if err := m.identify(m.plane.Admin().Host, m.options, m.name); err != nil {
		return err
	}
	return m.startKubelet()
}

func (m *machine) startPlane(ctx context.Context) (err error) {
	if err := os.MkdirAll(m.path("control"), 0o755); err != nil {
		return err
	}
	m.plane, err = cluster.Start(ctx, cluster.Options{
		Binary: m.program("controlplane"), Dir: m.path("control"),
		Addresses: []net.IP{net.ParseIP(nodeAddress), net.IPv4(10, 96, 0, 1)},
		APIServerArgs: []string{
			"--bind-address=0.0.0.0", "--advertise-address=" + nodeAddress, "--endpoint-reconciler-type=lease",
			"--authorization-mode=Node", "--enable-admission-plugins=NodeRestriction",
		},
	})
	if err != nil {
		return err
	}
	m.done("control plane")
	if err := m.plane.WriteKubeconfig(m.plane.Admin(), m.path("inside.kubeconfig"), "default"); err != nil {
		return err
	}
	outside := m.plane.Admin()
	outside.Host = "https://" + m.outside
	return m.plane.WriteKubeconfig(outside, m.path("kubeconfig"), "default")
}

// complete adds what is a pod or needs the API server, and returns when all of it works.
func (m *machine) complete(ctx context.Context) error {
	crds := m.program("snapshot-controller.crds.yaml")
	if err := m.kubectl(ctx, "apply", "--server-side", "-f", crds, "-f", m.path("storage.yaml")); err != nil {
		return err
	}
	if err := m.kubectl(ctx, "wait", "--for=condition=Established", "-f", crds); err != nil {
		return err // The snapshot controller does not start without its kinds.
	}
	err := m.services.start("snapshot-controller", m.program("snapshot-controller"),
		"--kubeconfig="+m.path("inside.kubeconfig"), "--retry-interval-start=200ms")
	if err != nil {
		return err
	}
	for _, dir := range []string{"buckets/backups", "metadata"} {
		if err := os.MkdirAll(m.path("s3", dir), 0o755); err != nil {
			return err
		}
	}
	err = m.services.start("versitygw", m.program("versitygw"), "--port="+s3Address, "--access="+s3Key, "--secret="+s3Secret,
		"--region="+s3Region, "posix", "--sidecar="+m.path("s3", "metadata"), m.path("s3", "buckets"))
	if err != nil {
		return err
	}
	for _, wait := range [][]string{
		{"wait", "--for=create", "node/" + nodeName, "csinode/" + nodeName},
		{"wait", "--for=condition=Ready", "node/" + nodeName},
		{"apply", "--server-side", "-f", m.path("classes.yaml")},
		{"rollout", "status", "--namespace=kube-system", "daemonset/csi"},
		{"rollout", "status", "--namespace=kube-system", "deployment/csi"},
		{"wait", "--for=jsonpath={.spec.drivers[0].name}=csi.lateen.test", "csinode/" + nodeName},
	} {
		if err := m.kubectl(ctx, wait...); err != nil {
			return err
		}
		m.done("kubectl " + strings.Join(wait, " "))
	}
	return m.services.failed()
}

func (m *machine) kubectl(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, m.program("kubectl"), append([]string{"--kubeconfig=" + m.path("inside.kubeconfig")}, args...)...)
	command.Env = m.environment()
	output, err := command.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, output)
		return errors.Join(err, m.services.failed())
	}
	return nil
}

// write writes a file of the cluster's directory.
func (m *machine) write(content string, path ...string) error {
	file := m.path(path...)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(content), 0o644)
}
