package leader

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"
)

// trackerFixture is an AgentTracker that records its changes, in a synctest bubble.
type trackerFixture struct {
	*testing.T
	*AgentTracker
	lock    sync.Mutex
	answers map[string]answer // the last ones, without ready
	changes []string
	flips   []string     // changes of ready alone
	ended   atomic.Int32 // number of states that have ended
	nodes   map[string]*watchedNode
}

func newTrackerFixture(t *testing.T) *trackerFixture {
	t.Helper()
	f := &trackerFixture{T: t, answers: map[string]answer{}, nodes: map[string]*watchedNode{}}
	f.AgentTracker = NewAgentTracker(time.Minute, clock.RealClock{}, f, func(node string) {
		if !f.Knows(node) { // the callback may call the tracker
			f.ended.Add(1)
			return
		}
		f.AgentTracker.lock.Lock()
		now := f.AgentTracker.nodes[node].answer
		f.AgentTracker.lock.Unlock()
		f.lock.Lock()
		defer f.lock.Unlock()
		ready := now.ready
		if now.ready = false; now == f.answers[node] {
			f.flips = append(f.flips, fmt.Sprint(node, " ", ready))
			return
		}
		f.answers[node] = now
		f.changes = append(f.changes, fmt.Sprint(node, " ", now.unavailable))
	})
	return f
}

// inTerm runs a test in a bubble, in which a term has just begun.
func inTerm(t *testing.T, test func(f *trackerFixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newTrackerFixture(t)
		f.Start()
		test(f)
	})
}

// takeChanges returns the changes since its last call.
func (t *trackerFixture) takeChanges() []string {
	t.lock.Lock()
	defer t.lock.Unlock()
	defer func() { t.changes = nil }()
	return t.changes
}

// agentPod returns the pod of an agent. transition is the time of its Ready condition.
func agentPod(name, node string, ready corev1.ConditionStatus, transition int) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: ready, LastTransitionTime: metav1.NewTime(created(transition))},
		}},
	}
}

func terminating(pod *corev1.Pod) *corev1.Pod {
	pod.DeletionTimestamp = &metav1.Time{Time: created(0)}
	return pod
}

func withUID(uid types.UID, pod *corev1.Pod) *corev1.Pod {
	pod.UID = uid
	return pod
}

const (
	isReady  = corev1.ConditionTrue
	notReady = corev1.ConditionFalse
)

func TestAnAgentThatIsReadyAgainIsReportedThoughItWasNeverUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTrackerFixture(t)
		f.Update(agentPod("a", "n1", isReady, 0))
		f.Start()
		f.Update(agentPod("a", "n1", isReady, 0))
		require.Empty(t, f.flips, "it has been there")
		f.Update(agentPod("a", "n1", notReady, 1))
		f.Update(agentPod("a", "n1", isReady, 2))
		f.Update(agentPod("b", "n1", isReady, 3))
		require.Equal(t, []string{"n1 false", "n1 true"}, f.flips, "its container was started again, and a second pod changes nothing")
		require.Empty(t, f.takeChanges())
		f.Stop()
	})
}

func TestAnAgentThatIsNotReadyForTheGracePeriodIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTrackerFixture(t)
		f.Update(agentPod("a", "n1", isReady, 0))
		f.Start()
		letPass(time.Hour)
		require.False(t, f.Unavailable("n1"))
		f.Update(agentPod("a", "n1", notReady, 1))
		letPass(time.Minute - 1)
		f.Update(agentPod("a", "n1", notReady, 1))
		require.False(t, f.Unavailable("n1"))
		require.Empty(t, f.takeChanges())
		letPass(1)
		require.True(t, f.Unavailable("n1"))
		require.False(t, f.isWatched(), "it was not requested")
		require.Equal(t, []string{"n1 true"}, f.takeChanges())
		letPass(time.Hour)
		require.False(t, f.Lost("n1"), "its Node was not watched")
		require.Equal(t, 1, f.Nodes())
		f.Update(agentPod("a", "n1", isReady, 2))
		require.Equal(t, []string{"n1 false"}, f.takeChanges())
	})
}

func TestNoAgentIsUnavailableBeforeTheTermHasLastedForTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTrackerFixture(t)
		f.Update(agentPod("a", "n1", notReady, -1000))
		letPass(time.Hour)
		require.False(t, f.Unavailable("n1"), "the cache is not complete: another pod may be Ready there")
		require.False(t, f.Unavailable("asked for early"))
		f.Start()
		require.False(t, f.Unavailable("unknown"))
		letPass(time.Minute - 1)
		require.Empty(t, f.takeChanges())
		letPass(1)
		require.ElementsMatch(t, []string{"n1 true", "asked for early true", "unknown true"}, f.takeChanges())
		require.True(t, f.Unavailable("asked for only now"), "it was never there")
		require.Empty(t, f.takeChanges(), "the caller gets the answer")
		f.Update(agentPod("b", "unknown", isReady, 0))
		require.Equal(t, []string{"unknown false"}, f.takeChanges())
	})
}

func TestOneReadyPodIsEnough(t *testing.T) {
	inTerm(t, func(f *trackerFixture) {
		f.Update(agentPod("old", "n1", isReady, 0))
		f.Update(agentPod("new", "n1", notReady, 0))
		require.Equal(f, 1, f.Nodes())
		letPass(time.Hour)
		f.Update(agentPod("new", "n1", isReady, 1))
		f.Delete(agentPod("old", "n1", isReady, 0))
		require.False(f, f.Unavailable("n1"))
		letPass(time.Hour)
		require.Empty(f, f.takeChanges())
		f.Delete(agentPod("new", "n1", isReady, 1))
		require.Zero(f, f.Nodes())
		letPass(time.Minute)
		require.Equal(f, []string{"n1 true"}, f.takeChanges())
	})
}

func TestOnlyAReadyAgentOfLateenMayGetNewTransfers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTrackerFixture(t)
		f.Update(agentPod("a", "n1", isReady, 0))
		require.False(t, f.Ready("n1"), "there is no term")
		f.Start()
		require.True(t, f.Ready("n1"))
		require.False(t, f.Ready("n2"), "it has no agent")
		f.Update(agentPod("a", "n1", notReady, 1))
		require.False(t, f.Ready("n1"))
		f.Update(velerosPod(isReady, 0))
		require.False(t, f.Ready("n1"), "its agent is Velero's")
		f.Update(agentPod("a", "n1", isReady, 2))
		for i := range 20 {
			f.Update(agentPod(fmt.Sprint("new", i), "n1", notReady, 0))
			require.True(t, f.Ready("n1") && f.RunsVelero("n1"), "one Ready pod of each, among others in any order")
		}
		f.Update(agentPod("unscheduled", "", isReady, 0))
		f.Delete(agentPod("unscheduled", "", isReady, 0))
		require.False(t, f.Knows(""), "an unscheduled pod is on no node")
		f.Stop()
		require.False(t, f.Ready("n1"))
	})
}

func TestTheGracePeriodGoesOnWhileNoPodIsReady(t *testing.T) {
	inTerm(t, func(f *trackerFixture) {
		f.Update(agentPod("a", "n1", isReady, 0))
		letPass(time.Hour)
		pending := withUID("second", agentPod("a", "n1", notReady, 0))
		pending.Status.Conditions = nil
		for _, pod := range []*corev1.Pod{
			terminating(agentPod("a", "n1", isReady, 0)), terminating(agentPod("a", "n1", notReady, 10)), // its condition follows
			pending, withUID("second", agentPod("a", "n1", notReady, 30)),
			withUID("third", agentPod("a", "n1", notReady, 40)), terminating(withUID("third", agentPod("a", "n1", notReady, 50))),
		} {
			require.Empty(f, f.takeChanges())
			f.Update(pod)
			letPass(10 * time.Second)
		}
		require.Equal(f, []string{"n1 true"}, f.takeChanges(), "a minute after its agent began to terminate")
	})
}

func TestTheGracePeriodRestartsWhenAnAgentWasReady(t *testing.T) {
	inTerm(t, func(f *trackerFixture) {
		f.Update(agentPod("a", "n1", notReady, 0))
		letPass(time.Minute - 1)
		f.Update(agentPod("a", "n1", notReady, 59)) // the watch has delivered only the last of two changes
		letPass(time.Minute - 1)
		require.Empty(f, f.takeChanges())
		letPass(1)
		require.Equal(f, []string{"n1 true"}, f.takeChanges())
		f.Update(agentPod("a", "n1", notReady, 120))
		require.Equal(f, []string{"n1 false"}, f.takeChanges())
		letPass(time.Minute)
		require.Equal(f, []string{"n1 true"}, f.takeChanges())
	})
}

func TestARecreatedPodReplacesTheOldOne(t *testing.T) {
	inTerm(t, func(f *trackerFixture) {
		f.Update(agentPod("a", "n1", isReady, 0))
		f.Update(withUID("another", agentPod("a", "n1", notReady, 9)))
		f.Delete(agentPod("a", "n1", isReady, 0)) // a late event
		require.Equal(f, 1, f.Nodes())
		letPass(time.Minute)
		require.Equal(f, []string{"n1 true"}, f.takeChanges())
		f.Update(withUID("another", agentPod("a", "n1", isReady, 10)))
		require.Equal(f, []string{"n1 false"}, f.takeChanges())
	})
}

func TestAfterTheTermNothingChanges(t *testing.T) {
	inTerm(t, func(f *trackerFixture) {
		letPass(time.Hour)
		timers := testingclock.NewFakeClock(f.clock.Now())
		f.clock = timers
		require.True(f, f.Unavailable("n2") && f.Unavailable("n3"))
		f.Update(agentPod("b", "n2", isReady, 0))
		f.Update(agentPod("a", "n1", notReady, 0))
		require.False(f, f.Lost("n1"))
		f.deliver("n1", notReady)
		require.Equal(f, 3, timers.Waiters(), "one each for the agent and the Node of n1, and for the end of the state of n3")
		f.Stop()
		require.Zero(f, timers.Waiters())
		timers.Step(time.Hour)
		f.Update(agentPod("a", "n1", isReady, 0))
		require.Empty(f, f.takeChanges())
		require.False(f, f.Unavailable("n1"))
	})
}

// known returns how many nodes have a state.
func (t *trackerFixture) known() int {
	t.AgentTracker.lock.Lock()
	defer t.AgentTracker.lock.Unlock()
	return len(t.AgentTracker.nodes)
}

func TestTheStateOfANodeEndsAfterTheNode(t *testing.T) {
	inTerm(t, func(f *trackerFixture) {
		for i := range 200 {
			name := fmt.Sprint("n", i)
			f.Update(agentPod(name, name, isReady, 0))
			f.Update(agentPod(name, name, notReady, 0))
			require.False(f, f.Lost(name))
			if i%2 == 1 {
				f.deliver(name, notReady)
				letPass(time.Minute)
			}
			f.deliver(name, "")
			f.Delete(agentPod(name, name, notReady, 0))
		}
		letPass(time.Minute)
		require.True(f, f.Unavailable("unwatched"))
		ended, late := f.AgentTracker.nodes["unwatched"], f.entry("n199").enqueue
		require.Zero(f, f.Nodes())
		for range 20 {
			require.True(f, f.Lost("n199"), "it is asked for")
			letPass(forgetAfter / 2)
		}
		require.Equal(f, 1, f.known())
		letPass(2 * forgetAfter)
		require.Zero(f, f.known())
		require.Equal(f, int32(201), f.ended.Load(), "each is reported")
		late()
		f.expired("unwatched", ended)
		require.Zero(f, f.known(), "late calls change nothing")
		require.Nil(f, ended.expiry)
		for name := range f.nodes {
			require.Nil(f, f.entry(name).enqueue, "it is still watched")
		}
	})
}

func TestTheStateOfANodeStaysWhileItsNodeExists(t *testing.T) {
	inTerm(t, func(f *trackerFixture) {
		require.False(f, f.Lost("n1"))
		f.deliver("n1", isReady)
		letPass(10 * forgetAfter)
		f.deliver("n1", notReady)
		letPass(time.Minute)
		f.takeChanges()
		require.True(f, f.Lost("n1"), "its watch has shown it")
		letPass(10 * forgetAfter)
		f.deliver("n1", "")
		f.lock.Lock()
		f.entry("n1").node = &corev1.Node{} // it is back, and its event is on its way
		f.lock.Unlock()
		letPass(forgetAfter)
		require.True(f, f.isWatched())
	})
}

// created returns the creation time of the resource with that age; smaller numbers are older.
func created(age int) time.Time { return time.Unix(1_800_000_000+int64(age), 0) }

// watchedNode is a Node on the API server.
type watchedNode struct {
	enqueue func() // nil while it is not watched
	known   bool   // the watch has delivered it
	node    *corev1.Node
}

func (t *trackerFixture) Watch(name string, enqueue func()) {
	t.lock.Lock()
	defer t.lock.Unlock()
	require.Nil(t, t.entry(name).enqueue, "it is watched already")
	t.entry(name).enqueue = enqueue
}

func (t *trackerFixture) Forget(name string) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.nodes[name] = nil
}

func (t *trackerFixture) Node(name string) (node *corev1.Node, known bool) {
	t.lock.Lock()
	defer t.lock.Unlock()
	return t.entry(name).node, t.entry(name).known
}

func (t *trackerFixture) entry(name string) *watchedNode {
	if t.nodes[name] == nil {
		t.nodes[name] = &watchedNode{}
	}
	return t.nodes[name]
}

// isWatched reports whether the Node n1 is watched.
func (t *trackerFixture) isWatched() bool {
	t.lock.Lock()
	defer t.lock.Unlock()
	return t.entry("n1").enqueue != nil
}

// deliver sends a Node through its watch. An empty status means that it does not exist.
func (t *trackerFixture) deliver(name string, ready corev1.ConditionStatus) {
	t.Helper()
	t.lock.Lock()
	of := t.entry(name)
	of.known, of.node = true, nil
	if ready != "" {
		of.node = &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeReady, Status: ready},
		}}}
	}
	enqueue := of.enqueue
	t.lock.Unlock()
	require.NotNil(t, enqueue, "the node is not watched")
	enqueue()
}

func TestANodeThatIsNotReadyForTheGracePeriodIsLost(t *testing.T) {
	for name, state := range map[string]corev1.ConditionStatus{"it does not answer": corev1.ConditionUnknown, "it says so": notReady, "it was deleted": ""} {
		t.Run(name, func(t *testing.T) {
			inTerm(t, func(f *trackerFixture) {
				require.False(f, f.Lost("n1"))
				f.Update(agentPod("a", "n1", isReady, 0))
				require.False(f, f.isWatched(), "a Node whose agent is Ready answers")
				f.Update(agentPod("a", "n1", notReady, 1))
				require.True(f, f.isWatched(), "it was requested")
				f.deliver("n1", state)
				letPass(time.Minute - 1)
				require.False(f, f.Lost("n1"))
				letPass(1)
				require.True(f, f.Lost("n1"))
				require.Equal(f, []string{"n1 true"}, f.takeChanges()[:1])
				f.Update(agentPod("a", "n1", notReady, 100))
				require.False(f, f.Lost("n1"), "its agent was Ready for a moment")
				f.Update(agentPod("a", "n1", isReady, 200))
				require.False(f, f.Lost("n1"))
				require.False(f, f.isWatched())
				require.Equal(f, []string{"n1 false"}, f.takeChanges()[:1])
			})
		})
	}
}

func TestANodeIsNotLostWhileItIsReadyOrUnknown(t *testing.T) {
	inTerm(t, func(f *trackerFixture) {
		require.False(f, f.Lost("n1"))
		letPass(time.Hour)
		require.True(f, f.isWatched(), "it has no agent")
		require.True(f, f.Unavailable("n1"))
		require.False(f, f.Lost("n1"), "the watch has shown nothing")
		f.deliver("n1", isReady)
		letPass(time.Hour)
		require.False(f, f.Lost("n1"), "only its agent is away")
		f.takeChanges()
		f.deliver("n1", notReady)
		letPass(time.Minute - 1)
		f.deliver("n1", isReady) // a short outage
		letPass(time.Hour)
		require.False(f, f.Lost("n1"))
		require.Empty(f, f.takeChanges())
		f.deliver("n1", notReady)
		letPass(time.Minute)
		require.Equal(f, []string{"n1 true"}, f.takeChanges(), "a change to report")
		require.True(f, f.Lost("n1"))
		f.Stop()
		require.False(f, f.Lost("n1"))
		require.False(f, f.isWatched())
	})
}

// velerosPod returns the pod of Velero's agent on n1.
func velerosPod(ready corev1.ConditionStatus, transition int) *corev1.Pod {
	pod := agentPod("v", "n1", ready, transition)
	pod.Spec.Containers = []corev1.Container{{Command: []string{"/velero"}, Args: []string{"node-agent", "server"}}}
	return pod
}

func TestANodeRunsVeleroUntilItsAgentIsDeletedOrReplaced(t *testing.T) {
	after := map[string]struct {
		happens func(f *trackerFixture)
		veleros bool
	}{
		"while it is Ready":                 {func(*trackerFixture) { letPass(time.Hour) }, true},
		"while it is away for a short time": {func(f *trackerFixture) { f.Update(velerosPod(notReady, 1)); letPass(time.Minute - 1) }, true},
		"while it terminates":               {func(f *trackerFixture) { f.Update(terminating(velerosPod(isReady, 0))) }, true},
		"not when it is away for longer":    {func(f *trackerFixture) { f.Update(velerosPod(notReady, 1)); letPass(time.Minute) }, false},
		"not once its pod is deleted":       {func(f *trackerFixture) { f.Delete(velerosPod(isReady, 0)) }, false},
		"not once Lateen's is Ready there":  {func(f *trackerFixture) { f.Update(velerosPod(notReady, 1)); f.Update(agentPod("l", "n1", isReady, 2)) }, false},
	}
	for name, test := range after {
		t.Run(name, func(t *testing.T) {
			inTerm(t, func(f *trackerFixture) {
				f.Update(velerosPod(isReady, 0))
				require.True(f, f.RunsVelero("n1"))
				require.Len(f, f.takeChanges(), 1)
				test.happens(f)
				require.Equal(f, test.veleros, f.RunsVelero("n1"))
				if !test.veleros {
					require.NotEmpty(f, f.takeChanges(), "a change to report")
				}
				require.False(f, f.RunsVelero("n2"))
				require.False(f, f.RunsVelero(""))
			})
		})
	}
}
