package leader

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/objects"
)

// AgentTracker tracks the nodes on which the coordinator stands in for the agent. Those are nodes without a Ready
// agent, nodes with Velero's agent, and lost nodes. It uses only the clock of this process, because the nodes' clocks
// may differ.
//
// A watch of a single Node shows whether that Node is Ready. It is open while no agent is Ready there and Lost was
// called. When a Node stops answering, the node controller sets its pods to not Ready, including its agent. So a
// cluster whose agents are all Ready has no watch of Nodes. The state of a node ends some time after the node.
type AgentTracker struct {
	grace   time.Duration
	clock   clock.WithDelayedExecution
	watched Nodes
	changed func(node string)

	lock    sync.Mutex
	started time.Time // zero before Start and after Stop
	nodes   map[string]*agentState
}

// forgetAfter is how long the state of a node that has neither an agent nor a Node is kept after the last request for it.
const forgetAfter = 10 * time.Minute

// Nodes watches single Nodes. Watch calls enqueue from another goroutine. Node returns nil for a Node that does not
// exist.
type Nodes interface {
	Watch(name string, enqueue func())
	Node(name string) (node *corev1.Node, known bool)
	Forget(name string)
}

// NewAgentTracker returns a tracker for the agent pods of a cache. It calls changed, without a lock, when an answer
// changes for a node that has or had an agent, or that was requested, when a node gets its first or loses its last pod of an
// agent, and when its state ends.
func NewAgentTracker(grace time.Duration, clk clock.WithDelayedExecution, nodes Nodes, changed func(node string)) *AgentTracker {
	return &AgentTracker{grace: grace, clock: clk, watched: nodes, changed: changed, nodes: map[string]*agentState{}}
}

// Start starts the tracking after the cache has synced. The grace of nodes without a cached agent begins now.
func (a *AgentTracker) Start() {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.started = a.clock.Now()
	for name := range a.nodes {
		a.evaluate(name)
	}
}

// Stop stops all timers and watches. Afterwards every answer is false and none changes.
func (a *AgentTracker) Stop() {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.started = time.Time{}
	for name, node := range a.nodes {
		a.end(name, node)
		node.answer = answer{}
	}
}

// Nodes returns how many nodes have the pod of an agent.
func (a *AgentTracker) Nodes() int {
	a.lock.Lock()
	defer a.lock.Unlock()
	count := 0
	for _, node := range a.nodes {
		if len(node.pods) > 0 {
			count++
		}
	}
	return count
}

// Knows reports whether there is a state of the node.
func (a *AgentTracker) Knows(node string) bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.nodes[node] != nil
}

// Unavailable reports whether the node has had no Ready agent for the grace. Before Start it returns false.
func (a *AgentTracker) Unavailable(node string) bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.requested(node).answer.unavailable
}

// RunsVelero reports whether the agent of the node is Velero's. That agent is Ready, or no agent is Ready and the
// grace is not over.
func (a *AgentTracker) RunsVelero(node string) bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.requested(node).answer.veleros
}

// Ready reports whether an agent of Lateen is Ready on the node.
func (a *AgentTracker) Ready(node string) bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.requested(node).answer.ready
}

// Lost reports whether the node is Unavailable and its Node has not been Ready, or has not existed, for the grace.
func (a *AgentTracker) Lost(node string) bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	known := a.requested(node)
	known.wanted = true
	a.watch(node, known)
	return known.answer.lost
}

// requested returns the state of a node and creates it if needed. Without any agent so far, the grace counts from
// Start.
func (a *AgentTracker) requested(name string) *agentState {
	if a.nodes[name] == nil {
		a.at(name).unavailable.since = a.started
		a.evaluate(name)
	}
	node := a.nodes[name]
	node.asked = a.clock.Now()
	return node
}

// Update records an agent's pod from the cache.
func (a *AgentTracker) Update(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	key := cache.MetaObjectToName(pod).String()
	a.change(pod.Spec.NodeName, nil, func(node *agentState) {
		before, now := node.pods[key], podStateOf(pod)
		node.pods[key] = now
		if now.wasReady(before) {
			node.unavailable.reset()
		}
	})
}

// Delete records that an agent's pod was deleted from the cache.
func (a *AgentTracker) Delete(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	key := cache.MetaObjectToName(pod).String()
	a.change(pod.Spec.NodeName, nil, func(node *agentState) {
		if node.pods[key].uid == pod.UID {
			delete(node.pods, key)
		}
	})
}

// isDown reports whether a Node is watched and is not Ready, or does not exist.
func (a *AgentTracker) isDown(name string, node *agentState) bool {
	if !node.watched {
		return false
	}
	observed, known := a.watched.Node(name)
	return known && (observed == nil || !objects.IsReady(observed))
}

// change updates the state of a node and reports a changed answer. Only a given state may have ended before: a timer or a
// watch called late, and must not begin another one.
func (a *AgentTracker) change(name string, given *agentState, how func(*agentState)) {
	a.lock.Lock()
	if given != nil && a.nodes[name] != given {
		a.lock.Unlock()
		return
	}
	node := a.at(name)
	before, hadPods := node.answer, len(node.pods) > 0
	how(node)
	a.evaluate(name)
	flipped := node.answer != before || !a.started.IsZero() && hadPods != (len(node.pods) > 0)
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

// evaluate recomputes the answer for a node.
func (a *AgentTracker) evaluate(name string) {
	if a.started.IsZero() {
		return
	}
	node := a.nodes[name]
	ready := node.ready()
	a.watch(name, node)
	a.measure(name, node, &node.unavailable, !ready)
	a.measure(name, node, &node.down, a.isDown(name, node))
	node.answer = answer{unavailable: node.unavailable.past, lost: node.unavailable.past && node.down.past}
	for _, pod := range node.pods { // while no agent is Ready and the grace is not over, any agent of Velero counts
		node.answer.ready = node.answer.ready || pod.ready && !pod.veleros
		node.answer.veleros = node.answer.veleros || pod.veleros && (pod.ready || !ready && !node.unavailable.past)
	}
	a.expire(name, node)
}

// gone reports whether a node has neither an agent nor, if it is watched, a Node, for longer than the grace.
func (a *AgentTracker) gone(name string, node *agentState) bool {
	if len(node.pods) > 0 || !node.answer.unavailable || node.watched && !node.answer.lost {
		return false
	}
	observed, _ := a.watched.Node(name)
	return observed == nil
}

// expire schedules the end of the state of a node that is gone. Whoever asks for the node later gets the answers of a new term.
func (a *AgentTracker) expire(name string, node *agentState) {
	switch gone := a.gone(name, node); {
	case !gone && node.expiry != nil:
		node.expiry.Stop()
		node.expiry = nil
	case gone && node.expiry == nil:
		node.expiry = a.clock.AfterFunc(forgetAfter-a.clock.Since(node.asked), func() { a.expired(name, node) })
	}
}

// expired forgets a node unless it has been asked for meanwhile.
func (a *AgentTracker) expired(name string, node *agentState) {
	a.lock.Lock()
	node.expiry = nil
	current := a.nodes[name] == node && !a.started.IsZero()
	forget := current && a.gone(name, node) && a.clock.Since(node.asked) >= forgetAfter
	if forget {
		a.end(name, node)
		delete(a.nodes, name)
	} else if current {
		a.expire(name, node)
	}
	a.lock.Unlock()
	if forget {
		a.changed(name)
	}
}

// end stops the timers and the watch of a node.
func (a *AgentTracker) end(name string, node *agentState) {
	node.unavailable.reset()
	node.down.reset()
	a.unwatch(name, node)
	if node.expiry != nil {
		node.expiry.Stop()
		node.expiry = nil
	}
}

// measure determines whether a condition has lasted for the grace. If not, it schedules an evaluation for that time.
func (a *AgentTracker) measure(name string, node *agentState, state *overdue, lasts bool) {
	if !lasts {
		state.reset()
		return
	}
	if state.since.IsZero() {
		state.since = a.clock.Now()
	}
	left := a.grace - a.clock.Since(state.since)
	if state.past = left <= 0; !state.past && state.timer == nil {
		state.timer = a.clock.AfterFunc(left, func() { a.change(name, node, func(*agentState) { state.timer = nil }) })
	}
}

// watch opens or closes the watch of the Node as needed.
func (a *AgentTracker) watch(name string, node *agentState) {
	switch {
	case node.ready():
		a.unwatch(name, node)
	case node.wanted && !node.watched && !a.started.IsZero():
		node.watched = true
		a.watched.Watch(name, func() { a.change(name, node, func(*agentState) {}) })
	}
}

func (a *AgentTracker) unwatch(name string, node *agentState) {
	if node.watched {
		a.watched.Forget(name)
		node.watched = false
	}
}

// agentState is the state of one node and its agent. Normally there is one pod; a rolling update may show two.
type agentState struct {
	pods        map[string]podState // by key
	unavailable overdue             // no pod of an agent is Ready
	down        overdue             // the Node is not Ready, or does not exist, while it is watched
	wanted      bool                // Lost was called
	watched     bool                // the Node is watched
	answer      answer
	asked       time.Time   // when anybody last asked for the node
	expiry      clock.Timer // set while the node is gone
}

// answer holds the results for one node.
type answer struct{ ready, unavailable, veleros, lost bool }

// podState is the last observed state of a pod.
type podState struct {
	uid     types.UID
	veleros bool // it is an agent of Velero
	ready   bool
	unready metav1.Time // since when it is not Ready, by its node's clock; only compared with itself
}

// overdue is a condition that may last longer than the grace.
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

func (a *agentState) ready() bool {
	for _, pod := range a.pods {
		if pod.ready {
			return true
		}
	}
	return false
}

// podStateOf returns the state of an agent's pod. A terminating pod is not Ready: its agent has stopped or stops soon.
func podStateOf(pod *corev1.Pod) podState {
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

// wasReady reports whether the pod was Ready between two observations in which it is not. A watch may deliver only
// the last of several changes.
func (p podState) wasReady(before podState) bool {
	return before.uid == p.uid && !before.unready.IsZero() && !p.unready.IsZero() && !before.unready.Equal(&p.unready)
}
