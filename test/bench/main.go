// Command bench prints figures of Lateen's agent and of Velero's at the same work, one after the other on one real control
// plane, with movers that move nothing: throughput, API calls and memory. It fails when Lateen's agent makes more calls than
// its bounds allow, and never because of time or memory, which depend on the machine.
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
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/procfs"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	// deadline is what a run may take.
	deadline = 20 * time.Minute
	// startDelay is what a node takes to start a pod.
	startDelay = 500 * time.Millisecond
	// slots is the number of movers that run at once on a node.
	slots = 4
)

func main() {
	only := flag.String("only", "", "play one scenario: pace, uploads, maintenance or memory")
	into := flag.String("record", "", "page whose tables get the figures")
	profiles := flag.String("profiles", "", "directory for CPU profiles of Lateen's coordinator, one for each scenario")
	flag.Parse()
	if *profiles != "" {
		measured[0].profiles, measured[0].works = *profiles, []string{"--profiling"}
	}
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
	for _, s := range scenarios {
		if only != "" && only != s.name {
			continue
		}
		played = true
		if err := e.compare(ctx, s, into); err != nil {
			return fmt.Errorf("play scenario %s: %w", s.name, err)
		}
	}
	if !played {
		return fmt.Errorf("find scenario %q: use pace, uploads, maintenance or memory", only)
	}
	return nil
}

// compare has each agent do the work of a scenario, and prints what was measured.
func (e *env) compare(ctx context.Context, s scenario, into string) error {
	result, err := newTable(s.name)
	if err != nil {
		return err
	}
	for _, a := range measured {
		fmt.Fprintf(os.Stderr, "scenario %s begins with %s: %d processors, load %s\n", s.name, a.name, runtime.NumCPU(), result.load)
		figures, err := s.play(ctx, e, a, s.name+"-"+strings.ToLower(a.name))
		if err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		result.figures = append(result.figures, figures)
	}
	if err := result.print(os.Stdout); err != nil {
		return err
	}
	if into != "" {
		if err := result.record(into); err != nil {
			return err
		}
	}
	return result.withinBounds()
}

// env is one control plane, on which every agent has an installation of its own for each scenario.
type env struct {
	plane *cluster.Cluster
	dir   string // for files
}

// installation is one of Velero with its nodes.
type installation struct {
	*fixture.Env
	agent nodeAgent
}

// user is the name by which the API server knows its agent.
func (i *installation) user() string {
	return "system:serviceaccount:" + i.Namespace + ":" + i.agent.account
}

// nodeAgent is a node-agent that is measured.
type nodeAgent struct {
	name, account string
	// start starts a program of it on a node, and waits until it works: the agent, or what maintains repositories.
	start           func(*fixture.Env, context.Context, *node.Node, ...string) (*fixture.Program, error)
	works, maintain []string // its arguments
	profiles        string   // directory; empty makes none
	// over reports whether it has nothing left to do for a transfer, besides removing the mover.
	over func(*testenv.Transfer) bool
}

// measured are the agents, in the order of the columns.
var measured = []nodeAgent{
	{
		name: "Lateen", account: deploy.ServiceAccountName, start: startLateen, over: testenv.Settled,
		maintain: []string{fmt.Sprintf("--repo-maintenance-concurrency=%d", jobsAtOnce), "--repo-maintenance-job-configmap=" + maintenanceConfigMap},
	},
	{
		name: "Velero", account: "velero", start: (*fixture.Env).VeleroProgram,
		over:  testenv.Ended, // its finalizer stays until the transfer is deleted
		works: []string{"node-agent", "server", "--node-agent-configmap=" + fixture.ConfigMap},
		maintain: []string{
			"server", "--plugin-dir=/plugins", "--profiler-address=127.0.0.1:0", "--repo-maintenance-job-configmap=" + maintenanceConfigMap,
			"--disable-controllers=" + strings.Join(node.IdleControllers(), ","),
		},
	},
}

// startLateen starts Lateen's agent. The first one of an installation coordinates.
func startLateen(e *fixture.Env, ctx context.Context, on *node.Node, flags ...string) (*fixture.Program, error) { //nolint:revive // a method's order
	started, err := e.Program(ctx, on, flags...)
	if err != nil {
		return nil, err
	}
	return started, coordinated(ctx, e)
}

// install makes one, in a namespace of that name. Close ends it, also after an error.
func (e *env) install(ctx context.Context, a nodeAgent, name string, nodes int, options fixture.Options) (*installation, error) {
	options.Namespace, options.NodeLabels = name, map[string]string{"bench": name}
	// The nodes of other installations stay registered, and Velero's agent would have movers scheduled there.
	options.Config = fmt.Sprintf(`{"loadConcurrency": {"globalConfig": %d}, "loadAffinity": [{"nodeSelector": {"matchLabels": {"bench": %q}}}]}`, slots, name)
	for i := range nodes {
		options.Nodes = append(options.Nodes, node.Options{Name: fmt.Sprintf("%s-%d", name, i), StartDelay: startDelay})
	}
	created, err := fixture.New(ctx, e.plane, filepath.Join(e.dir, name), options)
	return &installation{created, a}, err
}

// coordinated returns when an agent coordinates.
func coordinated(ctx context.Context, on *fixture.Env) error {
	_, err := testenv.Wait(ctx, on.Kube.CoordinationV1().Leases(on.Namespace), testenv.Named(deploy.CoordinatorLease), func(lease *coordinationv1.Lease) bool {
		return ptr.Deref(lease.Spec.HolderIdentity, "") != ""
	})
	return err
}

// scenario is work that each agent does on an installation of that name.
type scenario struct {
	name string
	play func(ctx context.Context, e *env, a nodeAgent, installation string) ([]figure, error)
}

// They are so small that Velero's agent needs at most two minutes for each.
var scenarios = []scenario{{"pace", pace}, {"uploads", uploads}, {"maintenance", maintenance}, {"memory", memory}}

// pace is a number of backups of 1 s on one node.
func pace(ctx context.Context, e *env, a nodeAgent, name string) ([]figure, error) {
	return e.carry(ctx, a, name, load{
		kind: testenv.PodVolumeBackup, transfers: 40, nodes: 1, takes: time.Second, prepare: prepareBackups, mostWrites: 7, mostReads: 4,
	})
}

// uploads is a number of data uploads of 1 s over three nodes.
func uploads(ctx context.Context, e *env, a nodeAgent, name string) (all []figure, err error) {
	controller, err := testenv.ServeSnapshots(ctx, e.plane)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, controller.Kill()) }()
	return e.carry(ctx, a, name, load{
		kind: testenv.DataUpload, transfers: 36, nodes: 3, takes: time.Second, prepare: prepareUploads, mostWrites: 16, mostReads: 6,
	})
}

// carry has agents do a load, and returns what was seen.
func (e *env) carry(ctx context.Context, a nodeAgent, name string, l load) ([]figure, error) {
	seen, err := e.do(ctx, a, name, l)
	if err != nil {
		return nil, err
	}
	took := measure(seen.transitions)
	if took.completed != l.transfers {
		return nil, fmt.Errorf("compare work: %d of %d transfers were completed", took.completed, l.transfers)
	}
	each := func(total float64) float64 { return rounded(total/float64(l.transfers), 100) }
	return []figure{
		{name: "makespan", value: seconds(took.makespan), unit: "s"},
		{name: "most InProgress at once on one node", value: float64(seen.mostOnANode()), most: slots},
		{name: "API writes per transfer", value: each(float64(seen.calls.writes)), most: l.mostWrites},
		{name: "API reads per transfer", value: each(float64(seen.calls.reads)), most: l.mostReads},
		{name: "Kubernetes Events per transfer", value: each(float64(seen.calls.events)), most: 1},
		{name: "conflicts (409)", value: float64(seen.calls.conflict)},
		{name: "processor time of agents per transfer", value: each(rounded(float64(seen.cpu)/float64(time.Millisecond), 10)), unit: "ms"},
		{name: "resident memory of an agent, after", value: seen.resident, unit: "MiB"},
	}, nil
}

// residentOf is the resident memory of an agent in MiB.
func residentOf(agent *fixture.Program) (float64, error) {
	stat, err := statOf(agent)
	return rounded(float64(stat.ResidentMemory())/(1<<20), 10), err
}

// cpuOf is the processor time that agents have used together, to 10 ms.
func cpuOf(agents []*fixture.Program) (sum time.Duration, err error) {
	for _, agent := range agents {
		stat, err := statOf(agent)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(stat.CPUTime() * float64(time.Second))
	}
	return sum, nil
}

// statOf is what the kernel counts of an agent. A sandbox has processes of its own, of which the agent is the only descendant
// without children.
func statOf(agent *fixture.Program) (procfs.ProcStat, error) {
	for pid := agent.PID(); ; {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err != nil {
			return procfs.ProcStat{}, fmt.Errorf("find the process of an agent: %w", err)
		}
		if _, err := fmt.Sscan(string(children), &pid); err != nil { // it has none
			found, err := procfs.NewProc(pid)
			if err != nil {
				return procfs.ProcStat{}, fmt.Errorf("find the process of an agent: %w", err)
			}
			return found.Stat()
		}
	}
}
