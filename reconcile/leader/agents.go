package leader

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/objects"
)

// AgentTracker tells of the nodes on which the coordinator has to do what their agents should: those without a Ready agent,
// those whose agent is Velero's, and those that are lost. Only the clock of this process counts: the nodes' clocks may differ.
//
// Whether a node is Ready is known from a watch of that one Node, which is open while no agent is Ready there and Lost has
// been asked for: the node controller makes the pods of a Node that stops answering not Ready, its agent's too. So a
// cluster whose agents are Ready costs no watch of Nodes at all.
type AgentTracker struct {
	grace   time.Duration
	clock   clock.WithDelayedExecution
	watched Nodes
	changed func(node string)

	lock    sync.Mutex
	started time.Time // zero before Begin and after End
	nodes   map[string]*agentState
}

// Nodes watches single Nodes; nil is one that does not exist. Wake is called from a goroutine of its own.
type Nodes interface {
	Watch(name string, enqueue func())
	Node(name string) (node *corev1.Node, known bool)
	Forget(name string)
}

// agentState is what is known of one node and its agent. Normally that is one pod; an update may show two.
type agentState struct {
	pods        map[string]podState // by key
	unavailable overdue             // no pod of an agent is Ready
	down        overdue             // the Node is not Ready, or does not exist, while it is watched
	wanted      bool                // Lost was asked for
	watched     bool                // the Node is
	answer      answer
}

// answer is what is told of a node.
type answer struct{ absent, veleros, lost bool }

// podState is how a pod looked last.
type podState struct {
	uid     types.UID
	veleros bool // it is Velero's agent
	ready   bool
	unready metav1.Time // since when it is not, as its node says; only compared with itself
}

// NewAgentTracker prepares for the pods of a cache. Changed is called, with no lock held, whenever an answer
// has changed for a node that has or had an agent, or was asked for.
func NewAgentTracker(grace time.Duration, clk clock.WithDelayedExecution, nodes Nodes, changed func(node string)) *AgentTracker {
	return &AgentTracker{grace: grace, clock: clk, watched: nodes, changed: changed, nodes: map[string]*agentState{}}
}

// Start says that the cache has been listed: who is not in it now is missed from now on.
func (a *AgentTracker) Start() {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.started = a.clock.Now()
	for name := range a.nodes {
		a.evaluate(name)
	}
}

// Stop stops all timers and watches; every answer is no and nothing changes after it.
func (a *AgentTracker) Stop() {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.started = time.Time{}
	for name, node := range a.nodes {
		node.unavailable.reset()
		a.unwatch(name, node)
		node.answer = answer{}
	}
}

// Unavailable tells whether the node has had no Ready agent for as long as the grace. Before Begin nobody is.
func (a *AgentTracker) Unavailable(node string) bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.requested(node).answer.absent
}

// RunsVelero tells whether the agent of the node is Velero's: it is Ready, or no agent is and it was not long ago.
func (a *AgentTracker) RunsVelero(node string) bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.requested(node).answer.veleros
}

// Lost tells whether the node is Absent and its Node has not been Ready, or has not existed, for as long as the grace.
func (a *AgentTracker) Lost(node string) bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	known := a.requested(node)
	known.wanted = true
	a.watch(node, known)
	return known.answer.lost
}

// requested is the node of that name, which is known from now on. Whose agent was never there is missed from the beginning.
func (a *AgentTracker) requested(name string) *agentState {
	if a.nodes[name] == nil {
		a.at(name).unavailable.since = a.started
		a.evaluate(name)
	}
	return a.nodes[name]
}

// Update takes in what the cache shows of an agent's pod.
func (a *AgentTracker) Update(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	key := cache.MetaObjectToName(pod).String()
	a.change(pod.Spec.NodeName, func(node *agentState) {
		before, now := node.pods[key], look(pod)
		node.pods[key] = now
		if now.wasReady(before) {
			node.unavailable.reset()
		}
	})
}

// Delete says that the cache has lost an agent's pod.
func (a *AgentTracker) Delete(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	key := cache.MetaObjectToName(pod).String()
	a.change(pod.Spec.NodeName, func(node *agentState) {
		if node.pods[key].uid == pod.UID {
			delete(node.pods, key)
		}
	})
}

// isDown tells whether a Node is watched and is not Ready, or does not exist.
func (a *AgentTracker) isDown(name string, node *agentState) bool {
	if !node.watched {
		return false
	}
	observed, known := a.watched.Node(name)
	return known && (observed == nil || !nodeReady(observed))
}

func nodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

// look is whether the agent in a pod works. One that terminates has stopped, or will at once.
func look(pod *corev1.Pod) podState {
	observed := podState{uid: pod.UID, veleros: objects.IsVelerosAgent(pod)}
	if pod.DeletionTimestamp != nil {
		return observed
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type != corev1.PodReady {
			continue
		}
		if observed.ready = condition.Status == corev1.ConditionTrue; !observed.ready {
			observed.unready = condition.LastTransitionTime
		}
	}
	return observed
}

// wasReady tells whether the pod was Ready between two sightings in which it is not: a watch may show
// only the last of several changes.
func (s podState) wasReady(before podState) bool {
	return before.uid == s.uid && !before.unready.IsZero() && !s.unready.IsZero() && !before.unready.Equal(&s.unready)
}

// change changes what is known of a node and says so if it makes a difference.
func (a *AgentTracker) change(name string, how func(*agentState)) {
	a.lock.Lock()
	node := a.at(name)
	before := node.answer
	how(node)
	a.evaluate(name)
	flipped := node.answer != before
	a.lock.Unlock()
	if flipped {
		a.changed(name)
	}
}

func (a *AgentTracker) at(name string) *agentState {
	if a.nodes[name] == nil {
		a.nodes[name] = &agentState{pods: map[string]podState{}}
	}
	return a.nodes[name]
}

// evaluate finds the answer for a node anew.
func (a *AgentTracker) evaluate(name string) {
	if a.started.IsZero() {
		return
	}
	node := a.nodes[name]
	ready := node.ready()
	a.watch(name, node)
	a.measure(name, &node.unavailable, !ready)
	a.measure(name, &node.down, a.isDown(name, node))
	node.answer = answer{
		absent:  node.unavailable.past,
		veleros: node.hasVeleros(ready, node.unavailable.past),
		lost:    node.unavailable.past && node.down.past,
	}
}

// measure finds out whether something lasts for the grace by now, and has the node judged again when it will.
func (a *AgentTracker) measure(name string, state *overdue, lasts bool) {
	if !lasts {
		state.reset()
		return
	}
	if state.since.IsZero() {
		state.since = a.clock.Now()
	}
	left := a.grace - a.clock.Since(state.since)
	if state.past = left <= 0; !state.past && state.timer == nil {
		state.timer = a.clock.AfterFunc(left, func() { a.change(name, func(*agentState) { state.timer = nil }) })
	}
}

// watch has the Node watched while it has to be.
func (a *AgentTracker) watch(name string, node *agentState) {
	switch {
	case node.ready():
		a.unwatch(name, node)
	case node.wanted && !node.watched && !a.started.IsZero():
		node.watched = true
		a.watched.Watch(name, func() { a.change(name, func(*agentState) {}) })
	}
}

func (a *AgentTracker) unwatch(name string, node *agentState) {
	if node.watched {
		a.watched.Forget(name)
		node.watched = false
	}
	node.down.reset()
}

func (p *agentState) ready() bool {
	for _, pod := range p.pods {
		if pod.ready {
			return true
		}
	}
	return false
}

// hasVeleros tells whether a Ready agent is Velero's or, while no agent is Ready and that is not so for long, any of them.
func (p *agentState) hasVeleros(ready, absent bool) bool {
	for _, pod := range p.pods {
		if pod.veleros && (pod.ready || !ready && !absent) {
			return true
		}
	}
	return false
}

// overdue is something that may last for longer than the grace.
type overdue struct {
	since time.Time // zero while it does not last
	past  bool
	timer clock.Timer
}

func (o *overdue) reset() {
	if o.timer != nil {
		o.timer.Stop()
	}
	*o = overdue{}
}
