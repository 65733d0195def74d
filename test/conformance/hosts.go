package conformance

import (
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/cluster/process"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// firstNode is the word for the node that every case has, on which an agent runs.
const firstNode = "NODE"

// fleet is the label of the nodes of a run on which agents run; its value is the name of the first one.
const fleet = "conformance.example.com/fleet"

// host is a node of a run, with the agent that runs on it, if one does.
type host struct {
	*node.Node
	dir    string // for the agent's log and scratch files
	podUID string // of the node-agent's pod

	lock sync.Mutex
	last *run
}

// start starts an agent there. Until that is done nobody gets to know which one runs, not even at its own requests.
func (h *host) start(agent *Agent, at fixture.Place, expected func()) (*run, error) {
	h.lock.Lock()
	defer h.lock.Unlock()
	started, err := agent.start(at)
	if err != nil {
		return nil, err
	}
	started.expected, h.last = expected, started
	return started, nil
}

// run is the agent that was started last.
func (h *host) run() *run {
	h.lock.Lock()
	defer h.lock.Unlock()
	return h.last
}

// endAgent kills the agent of a node.
func (h *host) endAgent() {
	run := h.run()
	run.expected()
	run.end()
}

// machines are the nodes of the case, by their placeholders.
func (c *Case) machines() map[string]Machine {
	all := map[string]Machine{firstNode: {}}
	maps.Copy(all, c.Nodes)
	first := all[firstNode]
	first.Agent = true
	all[firstNode] = first
	return all
}

// nameNodes makes the names of all nodes of the case. The first one's is the beginning of all others.
func (c *caseRun) nameNodes(name string) {
	for word := range c.testCase.machines() {
		c.placeholders.set(word, name+"-"+strings.ToLower(word))
	}
	c.placeholders.set(firstNode, name)
}

// startNodes starts the nodes, the first one before the others, and returns when there are pods of the node-agent where agents are to run.
func (c *caseRun) startNodes(ctx context.Context) error {
	machines := c.testCase.machines()
	others := slices.DeleteFunc(slices.Sorted(maps.Keys(machines)), func(word string) bool { return word == firstNode })
	for _, word := range append([]string{firstNode}, others...) {
		if err := c.startNode(ctx, word, machines[word]); err != nil {
			return err
		}
	}
	for _, on := range c.hosts {
		pod, err := c.NodeAgentPod(ctx, on.Name(), testenv.Ready)
		if err != nil {
			return err
		}
		on.podUID = string(pod.UID)
	}
	return nil
}

func (c *caseRun) startNode(ctx context.Context, word string, machine Machine) error {
	options := node.Options{
		Name: c.placeholders.of(word), Root: filepath.Join(c.dir, "kubelet"), StartDelay: c.testCase.Mover.Starts.Duration,
		Runner: node.Movers{Runner: c.Movers, Jobs: jobs{}},
	}
	if machine.Agent {
		options.Labels = map[string]string{fleet: c.placeholders.of(firstNode)}
	}
	if err := c.StartNode(ctx, options); err != nil {
		return err
	}
	started := c.Nodes[len(c.Nodes)-1]
	c.testCase.Mover.trouble(started.Faults)
	if word == firstNode {
		c.node = started
	}
	if machine.Agent {
		c.hosts = append(c.hosts, &host{Node: started, dir: filepath.Join(c.dir, word)})
	}
	if machine.Spec == nil {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": c.expand(machine.Spec)})
	if err != nil {
		return fmt.Errorf("write patch of node: %w", err)
	}
	_, err = c.Kube.CoreV1().Nodes().Patch(ctx, options.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("patch node %s: %w", options.Name, err)
	}
	return nil
}

// trouble has the node do to movers what the case says.
func (m Mover) trouble(faults *node.Faults) {
	if m.Never {
		faults.Add(node.Fault{NeverStarts: true})
	}
	if m.Waiting != nil {
		faults.Add(node.Fault{Times: m.Times, Waiting: m.Waiting})
	}
	if m.Refused != nil {
		faults.Add(node.Fault{Times: m.Times, Refused: m.Refused})
	}
}

// startAgents starts the agents that the case begins with, one on each node that has one.
func (c *caseRun) startAgents(ctx context.Context) error {
	first := c.agent
	if c.testCase.Begins != "" {
		var err error
		if first, err = AgentNamed(c.testCase.Begins); err != nil {
			return err
		}
	}
	for _, on := range c.hosts {
		if err := c.startOn(ctx, first, on); err != nil {
			return err
		}
	}
	return nil
}

// startAgent starts the agent that is played on the first node.
func (c *caseRun) startAgent(ctx context.Context) error { return c.startOn(ctx, c.agent, c.hosts[0]) }

// startOn starts an agent with its own rights.
func (c *caseRun) startOn(ctx context.Context, agent *Agent, on *host) error {
	if err := os.MkdirAll(on.PodsDir(), 0o755); err != nil {
		return fmt.Errorf("make pods directory: %w", err)
	}
	if err := os.MkdirAll(on.dir, 0o755); err != nil {
		return fmt.Errorf("make directory of the agent: %w", err)
	}
	if err := c.RunsVelero(ctx, on.Node, agent.Title == "Velero"); err != nil {
		return err
	}
	config, err := c.plane.Cluster.ServiceAccount(ctx, c.Namespace, agent.Account)
	if err != nil {
		return err
	}
	if len(c.testCase.Requests) > 0 {
		if config, err = c.openLine(ctx, config, on); err != nil {
			return err
		}
	}
	at := fixture.Place{
		Dir: on.dir, Kubeconfig: filepath.Join(on.dir, "kubeconfig"), APIServer: fixture.HostPort(config),
		Namespace: c.Namespace, Node: on.Name(), PodUID: on.podUID, PodsDir: on.PodsDir(), Args: agent.arguments(c.testCase),
	}
	if err := cluster.WriteKubeconfig(config, at.Kubeconfig, c.Namespace); err != nil {
		return err
	}
	wanted, stop := context.WithCancel(ctx)
	run, err := on.start(agent, at, stop)
	if err != nil {
		stop()
		return err
	}
	c.atEnd(func() {
		stop()
		run.end()
	})
	go func() {
		if err := run.watch(wanted); err != nil {
			c.fail(err)
		}
	}()
	return nil
}

// Agent is a node-agent that cases can be played against.
type Agent struct {
	Name  string // of it, and of its binary
	Title string // with its version
	Args  []string
	// Maintains is what maintains repositories; nil: the agent.
	Maintains []string
	Account   string // its ServiceAccount
	// Patience is how long it may take for all that a case expects. MayFail says that a case that fails tells something
	// about it, and is no fault.
	Patience time.Duration
	// Settle is how long it may take, once a transfer has ended, for everything else.
	Settle  time.Duration
	MayFail bool
	// sandboxed gives it a network of its own and the files that its container has: Velero's agent serves on fixed ports.
	sandboxed bool
	binary    string
}

// AgentNamed finds an agent, whose binary must have been built.
func AgentNamed(name string) (*Agent, error) {
	agents := map[string]*Agent{
		// An agent that was killed holds the coordinator's Lease for half a minute; another one cleans up after it.
		"lateen": {
			Name: name, Title: "Lateen", Account: deploy.ServiceAccountName, Patience: testenv.Patience, Settle: testenv.Patience,
			Args: []string{"node-agent", "--cancel-grace=1s", "--metrics-address=127.0.0.1:0"},
		},
		// Velero waits at most ten minutes for anything that a case does not shorten (velero-protocol 2.6).
		"velero": {
			Name: name, Title: "Velero", Account: "velero", Patience: 11 * time.Minute, Settle: 2 * time.Minute, MayFail: true, sandboxed: true,
			Args: []string{"node-agent", "server"},
			Maintains: []string{
				"server", "--plugin-dir=/plugins", "--profiler-address=127.0.0.1:0", "--disable-controllers=" + strings.Join(node.IdleControllers(), ","),
			},
		},
		// The agent of the release before, from which a case may begin.
		"velero-1.17": {Name: name, Title: "Velero", Account: "velero", Args: []string{"node-agent", "server"}, sandboxed: true},
	}
	agent := agents[name]
	if agent == nil {
		return nil, fmt.Errorf("agent %q is not known: want lateen or velero", name)
	}
	var err error
	if agent.binary, err = cluster.FindBinary(name); err != nil {
		return nil, err
	}
	info, err := buildinfo.ReadFile(agent.binary)
	if err != nil {
		return nil, fmt.Errorf("read version of %s: %w", agent.binary, err)
	}
	for _, module := range info.Deps {
		if module.Path == "github.com/vmware-tanzu/velero" && agent.Title == "Velero" {
			agent.Title += " " + strings.TrimPrefix(module.Version, "v")
		}
	}
	return agent, nil
}

// arguments are those of the agent for a case: its own, and flags that all agents have.
func (a *Agent) arguments(testCase *Case) []string {
	if testCase.maintains() && a.Maintains != nil {
		return append(slices.Clone(a.Maintains), "--repo-maintenance-job-configmap="+jobMap)
	}
	args := append(slices.Clone(a.Args), "--node-agent-configmap="+fixture.ConfigMap)
	if testCase.maintains() {
		args = append(args, "--repo-maintenance-job-configmap="+jobMap)
	}
	if testCase.Repository != nil {
		args = append(args, "--backup-repository-configmap="+repositoryMap)
	}
	if timeout := testCase.PrepareTimeout.Duration; timeout != 0 {
		args = append(args, "--data-mover-prepare-timeout="+timeout.String())
	}
	return args
}

// run is one process of an agent.
type run struct {
	process  *process.Process
	log      string
	expected func() // has its end be no fault
}

// start starts the agent.
func (a *Agent) start(at fixture.Place) (*run, error) {
	r := &run{log: filepath.Join(at.Dir, "agent.log")}
	log, err := os.OpenFile(r.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("make log: %w", err)
	}
	defer log.Close()
	if !a.sandboxed {
		command := exec.Command(a.binary, slices.Concat(at.Args, []string{"--kubeconfig=" + at.Kubeconfig, "--namespace=" + at.Namespace})...)
		command.Stdout, command.Stderr, command.Env = log, log, []string{"NODE_NAME=" + at.Node, "HOME=" + at.Dir}
		r.process, err = process.Start(command)
		return r, err
	}
	r.process, err = fixture.StartSandboxed(a.binary, at, log)
	return r, err
}

// end kills the agent as the machine would: bubblewrap passes no other signal on.
func (r *run) end() { _ = r.process.Kill() } // one that cannot be killed is gone

// watch returns an error if the agent ends by itself before ctx is done.
func (r *run) watch(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-r.process.Ended():
		return errors.New("the agent ended by itself: " + r.tail())
	}
}

// tail is the last line of the log.
func (r *run) tail() string {
	text, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// prepare makes what is moved, and how its resource is made.
func (c *caseRun) prepare(ctx context.Context) error {
	switch c.testCase.Kind {
	case testenv.PodVolumeBackup:
		return c.preparePodVolumeBackup(ctx)
	case testenv.PodVolumeRestore:
		return c.preparePodVolumeRestore(ctx)
	case testenv.DataUpload:
		return c.prepareDataUpload(ctx)
	case repository:
		return c.prepareRepository()
	default:
		return c.prepareDataDownload(ctx)
	}
}

func (c *caseRun) preparePodVolumeBackup(ctx context.Context) error {
	volume, err := c.podVolume(ctx)
	if err != nil {
		return err
	}
	created, err := c.SourcePod(ctx, "app", c.placeholders.of("NODE"), volume)
	if err != nil {
		return err
	}
	pod, err := c.ready(ctx, created.Name, testenv.Ready)
	if err != nil {
		return err
	}
	if err := fixture.FillPod(ctx, c.node, pod); err != nil {
		return err
	}
	backup, err := c.Backup(ctx, "nightly")
	if err != nil {
		return err
	}
	c.create = func(ctx context.Context, alter func(metav1.Object)) (metav1.Object, error) {
		return c.PodVolumeBackup(ctx, backup, pod, "data", func(wanted *velerov1.PodVolumeBackup) { alter(wanted) })
	}
	return nil
}

func (c *caseRun) preparePodVolumeRestore(ctx context.Context) error {
	volume, err := c.podVolume(ctx)
	if err != nil {
		return err
	}
	restore, err := c.Restore(ctx, "nightly")
	if err != nil {
		return err
	}
	created, err := c.RestorePod(ctx, restore, "app", c.placeholders.of("NODE"), volume)
	if err != nil {
		return err
	}
	pod, err := c.ready(ctx, created.Name, testenv.WaitsForRestore)
	if err != nil {
		return err
	}
	c.create = func(ctx context.Context, alter func(metav1.Object)) (metav1.Object, error) {
		return c.PodVolumeRestore(ctx, restore, pod, "data", "a-snapshot", c.Apps, func(wanted *velerov1.PodVolumeRestore) { alter(wanted) })
	}
	return nil
}

// podVolume is the volume of a pod that is backed up or restored.
func (c *caseRun) podVolume(ctx context.Context) (corev1.Volume, error) {
	if !c.testCase.Volume.Claim {
		return testenv.EmptyDir("data"), nil
	}
	_, err := c.claim(ctx)
	return testenv.ClaimVolume("data", "data"), err
}

// alter changes a resource as the case wants, before it is created.
func (c *caseRun) alter(wanted metav1.Object) {
	patch, err := json.Marshal(c.expand(c.testCase.Transfer))
	if err == nil {
		err = json.Unmarshal(patch, wanted)
	}
	if err != nil {
		c.fail(fmt.Errorf("change the resource: %w", err))
	}
}
