package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

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

// startNodes starts the nodes, the first one before the others, and returns when there are pods of the node-agent where
// agents are to run.
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
		Name: c.placeholders.of(word), Root: filepath.Join(c.dir, "kubelet"), StartDelay: time.Duration(c.testCase.Mover.Starts),
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
		faults.Add(node.Fault{Times: m.Times, Waiting: &node.Waiting{Reason: m.Waiting.Reason, Message: m.Waiting.Message}})
	}
	if m.Refused != nil {
		faults.Add(node.Fault{Times: m.Times, Refused: &node.Waiting{Reason: m.Refused.Reason, Message: m.Refused.Message}})
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
		Dir: on.dir, Kubeconfig: filepath.Join(on.dir, "kubeconfig"), APIServer: hostPort(config),
		Namespace: c.Namespace, Node: on.Name(), PodUID: on.podUID, PodsDir: on.PodsDir(), Args: agent.arguments(c.testCase),
	}
	if err := c.plane.Cluster.WriteKubeconfig(config, at.Kubeconfig, c.Namespace); err != nil {
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

// hostPort is where the API server of a configuration listens.
func hostPort(config *rest.Config) string {
	_, address, _ := strings.Cut(config.Host, "://")
	return address
}
