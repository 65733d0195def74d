// Command bench prints figures of Lateen's agent at work on a real control plane, with movers that move nothing:
// throughput, API calls and memory. It judges none of them: figures depend on the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	// deadline is what a run may take. All scenarios together take about four minutes on two cores.
	deadline = 20 * time.Minute
	// startDelay is what a node takes to start a pod: what Velero's own agent was measured with.
	startDelay = 500 * time.Millisecond
	// slots is the number of movers that run at once on a node.
	slots = 4
)

// config is the ConfigMap of the agents.
var config = fmt.Sprintf(`{"loadConcurrency": {"globalConfig": %d}}`, slots)

func main() {
	only := flag.String("only", "", "play one scenario: pace, uploads, maintenance or memory")
	into := flag.String("record", "", "page whose tables get the figures")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *only, *into); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // there is nothing left to stop
	}
}

// run plays all scenarios, or one of them, on one control plane.
func run(ctx context.Context, only, into string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	e := &env{}
	if e.dir, err = os.MkdirTemp("", "lateen-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(e.dir)) }()
	if err := fixture.LogToFile(e.dir); err != nil {
		return err
	}
	if e.plane, err = cluster.Start(ctx, cluster.Options{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.plane.Stop()) }()
	if err := testenv.InstallCRDs(ctx, e.plane.Admin()); err != nil {
		return err
	}
	played := false
	for _, scenario := range []struct {
		name string
		play func(context.Context, *sheet) error
	}{{"pace", e.pace}, {"uploads", e.uploads}, {"maintenance", e.maintenance}, {"memory", e.memory}} {
		if only != "" && only != scenario.name {
			continue
		}
		played = true
		figures, err := newSheet(scenario.name)
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "scenario %s begins: %d processors, load %s\n", scenario.name, runtime.NumCPU(), figures.load)
		if err := errors.Join(scenario.play(ctx, figures), figures.print(os.Stdout)); err != nil {
			return fmt.Errorf("play scenario %s: %w", scenario.name, err)
		}
		if into != "" {
			if err := figures.record(into); err != nil {
				return err
			}
		}
	}
	if !played {
		return fmt.Errorf("find scenario %q: use pace, uploads, maintenance or memory", only)
	}
	return nil
}

// env is one control plane, on which every scenario has an installation of its own.
type env struct {
	plane *cluster.Cluster
	dir   string // for files
}

// installation is one of Velero with its nodes.
type installation struct {
	*fixture.Env
}

// install makes one, in a namespace of that name. Close ends it, also after an error.
func (e *env) install(ctx context.Context, name string, nodes int, options fixture.Options) (*installation, error) {
	options.Namespace, options.NodeLabels, options.Config = name, map[string]string{"bench": name}, config
	for i := range nodes {
		options.Nodes = append(options.Nodes, node.Options{Name: fmt.Sprintf("%s-%d", name, i), StartDelay: startDelay})
	}
	created, err := fixture.New(ctx, e.plane, filepath.Join(e.dir, name), options)
	return &installation{created}, err
}

// coordinated returns when an agent coordinates.
func coordinated(ctx context.Context, on *fixture.Env) error {
	_, err := testenv.Wait(ctx, on.Kube.CoordinationV1().Leases(on.Namespace), testenv.Named(deploy.CoordinatorLease), func(lease *coordinationv1.Lease) bool {
		return ptr.Deref(lease.Spec.HolderIdentity, "") != ""
	})
	return err
}
