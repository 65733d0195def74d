package reconcile

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

// Agents tells which nodes have had no Ready agent for a while, so that the coordinator stands in for
// them. Only the clock of this process counts: the nodes' clocks may differ.
type Agents struct {
	grace   time.Duration
	clock   clock.WithDelayedExecution
	changed func(node string)

	lock  sync.Mutex
	begun time.Time // zero before Begin and after End
	nodes map[string]*presence
}

// presence is what is known of the agent of one node. Normally that is one pod; an update may show two.
type presence struct {
	pods   map[string]sighting // by key
	missed time.Time           // since when none is Ready; zero while one is, and before Begin
	absent bool
	timer  clock.Timer
}

// sighting is how a pod looked last.
type sighting struct {
	uid     types.UID
	ready   bool
	unready metav1.Time // since when it is not, as its node says; only compared with itself
}

// NewAgents prepares for the pods of a cache. Changed is called, with no lock held, whenever the answer of
// Absent has changed for a node that has or had an agent, or was asked for.
func NewAgents(grace time.Duration, clk clock.WithDelayedExecution, changed func(node string)) *Agents {
	return &Agents{grace: grace, clock: clk, changed: changed, nodes: map[string]*presence{}}
}

// Begin says that the cache has been listed: who is not in it now is missed from now on.
func (a *Agents) Begin() {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.begun = a.clock.Now()
	for name := range a.nodes {
		a.judge(name, false)
	}
}

// End stops all timers; nobody is absent and nothing changes after it.
func (a *Agents) End() {
	a.lock.Lock()
	defer a.lock.Unlock()
	a.begun = time.Time{}
	for _, node := range a.nodes {
		node.found()
	}
}

// Absent tells whether the node has had no Ready agent for as long as the grace. Before Begin nobody is.
func (a *Agents) Absent(node string) bool {
	a.lock.Lock()
	defer a.lock.Unlock()
	if a.nodes[node] == nil {
		a.at(node).missed = a.begun // whose agent was never there is missed from the beginning
		a.judge(node, false)
	}
	return a.nodes[node].absent
}

// Saw takes in what the cache shows of an agent's pod.
func (a *Agents) Saw(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	key := cache.MetaObjectToName(pod).String()
	a.change(pod.Spec.NodeName, func(node *presence) bool {
		before, now := node.pods[key], look(pod)
		node.pods[key] = now
		return now.wasReady(before)
	})
}

// Gone says that the cache has lost an agent's pod.
func (a *Agents) Gone(pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	key := cache.MetaObjectToName(pod).String()
	a.change(pod.Spec.NodeName, func(node *presence) bool {
		if node.pods[key].uid == pod.UID {
			delete(node.pods, key)
		}
		return false
	})
}

// look is whether the agent in a pod works. One that terminates has stopped, or will at once.
func look(pod *corev1.Pod) sighting {
	seen := sighting{uid: pod.UID}
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
func (a *Agents) change(name string, how func(*presence) (again bool)) {
	a.lock.Lock()
	again := how(a.at(name))
	flipped := a.judge(name, again)
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

// judge tells whether the answer for a node has changed. Again is that its agent was Ready since the
// last time, so that the grace begins anew.
func (a *Agents) judge(name string, again bool) (flipped bool) {
	node := a.nodes[name]
	if a.begun.IsZero() {
		return false
	}
	before := node.absent
	if again || node.ready() {
		node.found()
	}
	if node.ready() {
		return before
	}
	if node.missed.IsZero() {
		node.missed = a.clock.Now()
	}
	left := a.grace - a.clock.Since(node.missed)
	if node.absent = left <= 0; !node.absent && node.timer == nil {
		node.timer = a.clock.AfterFunc(left, func() {
			a.change(name, func(node *presence) bool {
				node.timer = nil
				return false
			})
		})
	}
	return node.absent != before
}

func (p *presence) ready() bool {
	for _, pod := range p.pods {
		if pod.ready {
			return true
		}
	}
	return false
}

// found forgets that the agent was missed.
func (p *presence) found() {
	p.missed, p.absent = time.Time{}, false
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
}
