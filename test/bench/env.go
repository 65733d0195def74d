package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// startDelay is what the node takes to start a pod: what Velero's own agent was measured with.
const startDelay = 500 * time.Millisecond

// env is one control plane, on which every scenario has an installation of its own.
type env struct {
	report
	logs     string    // directory; "" means a temporary one
	flags    []string  // more of them for every agent
	progress io.Writer // one line per scenario

	plane        *cluster.Cluster
	closing      []func() error
	snapshotting bool // the snapshot-controller runs
}

// open starts the control plane. What was begun is ended by close, also after an error.
func (s *env) open(ctx context.Context) (err error) {
	if s.logs == "" {
		if s.logs, err = os.MkdirTemp("", "lateen-bench-"); err != nil {
			return err
		}
		s.atEnd(func() error { return os.RemoveAll(s.logs) })
	}
	if err := fixture.LogToFile(s.logs); err != nil {
		return err
	}
	if s.plane, err = cluster.Start(ctx, cluster.Options{}); err != nil {
		return err
	}
	s.atEnd(s.plane.Stop)
	return testenv.InstallCRDs(ctx, s.plane.Admin())
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

// layout is what an installation is like.
type layout struct {
	name   string        // of the namespace
	nodes  int           // 0: 1
	slots  int           // of each node
	movers time.Duration // what each takes
	jobs   time.Duration // what the pod of each maintenance job takes
	floor  bool          // package floor is the only agent, in place of Lateen's
}

// installation is one of Velero with its nodes.
type installation struct {
	*fixture.Env
	layout
	env *env
}

// install makes one.
func (s *env) install(ctx context.Context, as layout) (*installation, error) {
	options := fixture.Options{
		Takes: as.movers, Jobs: jobs{as.jobs}, Config: fmt.Sprintf(`{"loadConcurrency": {"globalConfig": %d}}`, as.slots),
	}
	options.Namespace, options.NodeLabels = as.name, map[string]string{"bench": as.name}
	for i := range max(as.nodes, 1) {
		options.Nodes = append(options.Nodes, node.Options{Name: fmt.Sprintf("%s-%d", as.name, i), StartDelay: startDelay})
	}
	created, err := fixture.New(ctx, s.plane, filepath.Join(s.logs, as.name), options)
	s.atEnd(created.Close)
	return &installation{Env: created, layout: as, env: s}, err
}

// agent runs Lateen's agent of a node until it is killed, at the latest at the end of the scenario.
func (s *installation) agent(ctx context.Context, on *node.Node, flags ...string) (*fixture.Program, error) {
	if s.floor {
		return s.ProgramOf(ctx, "bench", on, "floor", "--selector=bench="+s.name, fmt.Sprint("--nodes=", len(s.Nodes)), fmt.Sprint("--slots=", s.slots))
	}
	return s.Program(ctx, on, slices.Concat(flags, s.env.flags)...)
}

// running is a pod of the first node that has volumes, once it runs.
func (s *installation) running(ctx context.Context, volumes ...corev1.Volume) (*corev1.Pod, error) {
	created, err := s.SourcePod(ctx, "source", s.Nodes[0].Name(), volumes...)
	if err != nil {
		return nil, err
	}
	return s.WaitPod(ctx, created.Namespace, created.Name, testenv.Running)
}
