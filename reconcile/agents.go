package reconcile

import (
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/build"
)

// Agents tells of the nodes on which the coordinator has to do what their agents should: those without a Ready agent,
// those whose agent is Velero's, and those that are lost. Only the clock of this process counts: the nodes' clocks may differ.
//
// Whether a node is Ready is known from a watch of that one Node, which is open while no agent is Ready there and Lost has
// been asked for: the node controller makes the pods of a Node that stops answering not Ready, its agent's too. So a
// cluster whose agents are Ready costs no watch of Nodes at all.
type Agents struct {
	grace   time.Duration
	clock   clock.WithDelayedExecution
	watched Nodes
	changed func(node string)

	lock  sync.Mutex
	begun time.Time // zero before Begin and after End
	nodes map[string]*presence
}

// Nodes watches single Nodes; nil is one that does not exist. Wake is called from a goroutine of its own.
type Nodes interface {
	Follow(name string, wake func())
	Node(name string) (node *corev1.Node, known bool)
	Forget(name string)
}

// presence is what is known of one node and its agent. Normally that is one pod; an update may show two.
type presence struct {
	pods    map[string]sighting // by key
	away    overdue             // no pod of an agent is Ready
	down    overdue             // the Node is not Ready, or does not exist, while it is watched
	wanted  bool                // Lost was asked for
	watched bool                // the Node is
	answer  answer
}

// answer is what is told of a node.
type answer struct{ absent, veleros, lost bool }

// sighting is how a pod looked last.
type sighting struct {
	uid     types.UID
	veleros bool // it is Velero's agent
	ready   bool
	unready metav1.Time // since when it is not, as its node says; only compared with itself
}

// NewAgents prepares for the pods of a cache. Changed is called, with no lock held, whenever an answer
// has changed for a node that has or had an agent, or was asked for.
func NewAgents(grace time.Duration, clk clock.WithDelayedExecution, nodes Nodes, changed func(node string)) *Agents {
	return &Agents{grace: grace, clock: clk, watched: nodes, changed: changed, nodes: map[string]*presence{}}
}

// Begin says that the cache has been listed: who is not in it now is missed from now on.
func (a *Agents) Begin() {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.begun = a.clock.Now()
	for name := range a.nodes {
		a.judge(name)
	}
}

// End stops all timers and watches; every answer is no and nothing changes after it.
func (a *Agents) End() {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.begun = time.Time{}
	for name, node := range a.nodes {
		node.away.reset()
		a.unwatch(name, node)
		node.answer = answer{}
	}
}

// Absent tells whether the node has had no Ready agent for as long as the grace. Before Begin nobody is.
func (a *Agents) Absent(node string) bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.asked(node).answer.absent
}

// Veleros tells whether the agent of the node is Velero's: it is Ready, or no agent is and it was not long ago.
func (a *Agents) Veleros(node string) bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	return a.asked(node).answer.veleros
}

// Lost tells whether the node is Absent and its Node has not been Ready, or has not existed, for as long as the grace.
func (a *Agents) Lost(node string) bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	known := a.asked(node)
	known.wanted = true
	a.watch(node, known)
	return known.answer.lost
}

// asked is the node of that name, which is known from now on. Whose agent was never there is missed from the beginning.
func (a *Agents) asked(name string) *presence {
	if a.nodes[name] == nil {
		a.at(name).away.since = a.begun
		a.judge(name)
	}
	return a.nodes[name]
}

// Saw takes in what the cache shows of an agent's pod.
func (a *Agents) Saw(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	key := cache.MetaObjectToName(pod).String()
	a.change(pod.Spec.NodeName, func(node *presence) {
		before, now := node.pods[key], look(pod)
		node.pods[key] = now
		if now.wasReady(before) {
			node.away.reset()
		}
	})
}

// Gone says that the cache has lost an agent's pod.
func (a *Agents) Gone(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	key := cache.MetaObjectToName(pod).String()
	a.change(pod.Spec.NodeName, func(node *presence) {
		if node.pods[key].uid == pod.UID {
			delete(node.pods, key)
		}
	})
}

// isDown tells whether a Node is watched and is not Ready, or does not exist.
func (a *Agents) isDown(name string, node *presence) bool {
	if !node.watched {
		return false
	}
	seen, known := a.watched.Node(name)
	return known && (seen == nil || !nodeReady(seen))
}

func nodeReady(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

// look is whether the agent in a pod works. One that terminates has stopped, or will at once.
func look(pod *corev1.Pod) sighting {
	seen := sighting{uid: pod.UID, veleros: build.IsVelerosAgent(pod)}
	if pod.DeletionTimestamp != nil {
		return seen
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type != corev1.PodReady {
			continue
		}
		if seen.ready = condition.Status == corev1.ConditionTrue; !seen.ready {
			seen.unready = condition.LastTransitionTime
		}
	}
	return seen
}

// wasReady tells whether the pod was Ready between two sightings in which it is not: a watch may show
// only the last of several changes.
func (s sighting) wasReady(before sighting) bool {
	return before.uid == s.uid && !before.unready.IsZero() && !s.unready.IsZero() && !before.unready.Equal(&s.unready)
}

// change changes what is known of a node and says so if it makes a difference.
func (a *Agents) change(name string, how func(*presence)) {
	a.lock.Lock()
	node := a.at(name)
	before := node.answer
	how(node)
	a.judge(name)
	flipped := node.answer != before
	a.lock.Unlock()
	if flipped {
		a.changed(name)
	}
}

func (a *Agents) at(name string) *presence {
	if a.nodes[name] == nil {
		a.nodes[name] = &presence{pods: map[string]sighting{}}
	}
	return a.nodes[name]
}

// judge finds the answer for a node anew.
func (a *Agents) judge(name string) {
	if a.begun.IsZero() {
		return
	}
	node := a.nodes[name]
	ready := node.ready()
	a.watch(name, node)
	a.measure(name, &node.away, !ready)
	a.measure(name, &node.down, a.isDown(name, node))
	node.answer = answer{
		absent:  node.away.past,
		veleros: node.hasVeleros(ready, node.away.past),
		lost:    node.away.past && node.down.past,
	}
}

// measure finds out whether something lasts for the grace by now, and has the node judged again when it will.
func (a *Agents) measure(name string, state *overdue, lasts bool) {
	if !lasts {
		state.reset()
		return
	}
	if state.since.IsZero() {
		state.since = a.clock.Now()
	}
	left := a.grace - a.clock.Since(state.since)
	if state.past = left <= 0; !state.past && state.timer == nil {
		state.timer = a.clock.AfterFunc(left, func() { a.change(name, func(*presence) { state.timer = nil }) })
	}
}

// watch has the Node watched while it has to be.
func (a *Agents) watch(name string, node *presence) {
	switch {
	case node.ready():
		a.unwatch(name, node)
	case node.wanted && !node.watched && !a.begun.IsZero():
		node.watched = true
		a.watched.Follow(name, func() { a.change(name, func(*presence) {}) })
	}
}

func (a *Agents) unwatch(name string, node *presence) {
	if node.watched {
		a.watched.Forget(name)
		node.watched = false
	}
	node.down.reset()
}

func (p *presence) ready() bool {
	for _, pod := range p.pods {
		if pod.ready {
			return true
		}
	}
	return false
}

// hasVeleros tells whether a Ready agent is Velero's or, while no agent is Ready and that is not so for long, any of them.
func (p *presence) hasVeleros(ready, absent bool) bool {
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
