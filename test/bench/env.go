package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	configMap = "node-agent-config"
	// startDelay is what the node takes to start a pod: what Velero's own agent was measured with.
	startDelay = 500 * time.Millisecond
)

// env is one control plane, on which every scene has an environment of its own.
type env struct {
	report
	logs     string    // directory; "" means a temporary one
	flags    []string  // more of them for every agent
	progress io.Writer // told of each scene

	plane   *cluster.Cluster
	dir     string
	lateen  string // the binary
	closing []func() error

	snapshotting bool // the snapshot-controller runs
}

// open starts the control plane. What was begun is ended by close, also after an error.
func (s *env) open(ctx context.Context) (err error) {
	if s.lateen, err = cluster.FindBinary("lateen"); err != nil {
		return err
	}
	if s.dir, err = os.MkdirTemp("", "lateen-bench-"); err != nil {
		return err
	}
	s.atEnd(func() error { return os.RemoveAll(s.dir) })
	if err := s.openLogs(); err != nil {
		return err
	}
	if s.plane, err = cluster.Start(ctx, cluster.Options{}); err != nil {
		return err
	}
	s.atEnd(s.plane.Stop)
	return testenv.InstallCRDs(ctx, s.plane.Admin())
}

// openLogs has the simulated nodes log to a file: they complain of each pod that is deleted under their hands.
func (s *env) openLogs() error {
	if s.logs == "" {
		s.logs = s.dir
	}
	if err := os.MkdirAll(s.logs, 0o755); err != nil {
		return err
	}
	file, err := os.Create(filepath.Join(s.logs, "nodes.log"))
	if err != nil {
		return err
	}
	klog.SetSlogLogger(slog.New(slog.NewTextHandler(file, nil)))
	return nil
}

// atEnd has an end run by close, before those that were there already.
func (s *env) atEnd(end func() error) { s.closing = append(s.closing, end) }

func (s *env) close() error { return s.closeDownTo(0) }

// closeDownTo runs the newest ends, so that so many are left.
func (s *env) closeDownTo(left int) error {
	var errs []error
	for _, end := range slices.Backward(s.closing[left:]) {
		errs = append(errs, end())
	}
	s.closing = s.closing[:left]
	return errors.Join(errs...)
}

// layout is what an environment is like.
type layout struct {
	name   string        // of the namespace
	nodes  int           // 0: 1
	slots  int           // of each node
	movers time.Duration // what each takes
	jobs   time.Duration // what the pod of each maintenance job takes
}

// installation is one installation of Velero with its nodes, and how to run Lateen's agents there.
type installation struct {
	*testenv.Env
	layout
	env   *env
	nodes []*node.Node
	flags []string // of the agents
}

// install makes one.
func (s *env) install(ctx context.Context, as layout) (*installation, error) {
	root, labels := filepath.Join(s.dir, as.name), map[string]string{"bench": as.name}
	installed, err := testenv.New(ctx, s.plane.Admin(), testenv.Options{Namespace: as.name, NodeLabels: labels, KubeletRoot: root})
	if err != nil {
		return nil, err
	}
	data := map[string]string{"node-agent-config.json": fmt.Sprintf(`{"loadConcurrency": {"globalConfig": %d}}`, as.slots)}
	if err := installed.ConfigMap(ctx, configMap, data); err != nil {
		return nil, err
	}
	runner, err := node.NewStandIn(s.plane.Admin(), as.movers)
	if err != nil {
		return nil, err
	}
	created := &installation{Env: installed, layout: as, env: s}
	for i := range max(as.nodes, 1) {
		played, err := node.Start(ctx, s.plane.Admin(), node.Options{
			Name: fmt.Sprintf("%s-%d", as.name, i), Labels: labels, Root: root, StartDelay: startDelay, Runner: jobs{as.jobs, node.Movers{Runner: runner}},
		})
		if err != nil {
			return nil, err
		}
		s.atEnd(func() error { played.Stop(); return nil })
		created.nodes = append(created.nodes, played)
	}
	kubeconfig := filepath.Join(s.dir, as.name+".kubeconfig")
	if err := s.identity(ctx, as.name, kubeconfig); err != nil {
		return nil, err
	}
	created.flags = []string{"--kubeconfig=" + kubeconfig, "--namespace=" + as.name, "--node-agent-configmap=" + configMap}
	return created, nil
}

// identity writes the kubeconfig of the agent's own ServiceAccount, which has the rights of an installation.
func (s *env) identity(ctx context.Context, namespace, path string) error {
	if err := testenv.Apply(ctx, s.plane.Admin(), deploy.RBAC(namespace)...); err != nil {
		return err
	}
	config, err := s.plane.ServiceAccount(ctx, namespace, deploy.ServiceAccountName)
	if err != nil {
		return err
	}
	return s.plane.WriteKubeconfig(config, path, namespace)
}

// agent runs Lateen's agent of a node until it is killed, at the latest at the end of the scene.
func (s *installation) agent(ctx context.Context, on *node.Node, flags ...string) (*agent, error) {
	env := []string{"NODE_NAME=" + on.Name(), "HOME=" + s.env.dir}
	log := filepath.Join(s.env.logs, on.Name()+".log")
	started, err := startAgent(ctx, s.env.lateen, log, env, slices.Concat(s.flags, flags, s.env.flags))
	if err != nil {
		return nil, err
	}
	s.env.atEnd(func() error { started.kill(); return nil })
	return started, nil
}

// user is who the agents are in the audit log.
func (s *installation) user() string {
	return "system:serviceaccount:" + s.Namespace + ":" + deploy.ServiceAccountName
}

// running is a pod of its first node that has volumes, once it runs.
func (s *installation) running(ctx context.Context, volumes ...corev1.Volume) (*corev1.Pod, error) {
	created, err := s.SourcePod(ctx, "source", s.nodes[0].Name(), volumes...)
	if err != nil {
		return nil, err
	}
	return s.WaitPod(ctx, created.Namespace, created.Name, func(pod *corev1.Pod) bool {
		return pod.Status.Phase == corev1.PodRunning
	})
}
