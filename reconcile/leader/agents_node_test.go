package leader

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
)

// watchedNode is a Node on the API server.
type watchedNode struct {
	enqueue func() // nil while it is not watched
	known   bool   // the watch has delivered it
	node    *corev1.Node
}

func (t *trackerFixture) Watch(name string, enqueue func()) {
	t.lock.Lock()
	defer t.lock.Unlock()
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

// deliver sends the Node n1 through its watch. An empty status means that it does not exist.
func (t *trackerFixture) deliver(ready corev1.ConditionStatus) {
	t.Helper()
	t.lock.Lock()
	of := t.entry("n1")
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
				f.Update(agentPod("a", "n1", isReady, 0))
				require.False(f, f.Lost("n1"))
				require.False(f, f.isWatched(), "a Node whose agent is Ready answers")
				f.Update(agentPod("a", "n1", notReady, 1))
				require.True(f, f.isWatched(), "it was requested")
				f.deliver(state)
				letPass(time.Minute - 1)
				require.False(f, f.Lost("n1"))
				letPass(1)
				require.True(f, f.Lost("n1"))
				require.Equal(f, []string{"n1 true"}, f.takeChanges()[:1])
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
		require.True(f, f.isWatched(), "it has no agent")
		letPass(time.Hour)
		require.True(f, f.Unavailable("n1"))
		require.False(f, f.Lost("n1"), "the watch has shown nothing")
		f.deliver(isReady)
		letPass(time.Hour)
		require.False(f, f.Lost("n1"), "only its agent is away")
		f.takeChanges()
		f.deliver(notReady)
		letPass(time.Minute - 1)
		f.deliver(isReady) // a short outage
		letPass(time.Hour)
		require.False(f, f.Lost("n1"))
		require.Empty(f, f.takeChanges())
		f.deliver(notReady)
		letPass(time.Minute)
		require.Equal(f, []string{"n1 true"}, f.takeChanges(), "a change to report")
		require.True(f, f.Lost("n1"))
		f.Stop()
		require.False(f, f.Lost("n1"))
		require.False(f, f.isWatched())
	})
}

func TestANodeIsWatchedOnRequestOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newTrackerFixture(t)
		f.Update(agentPod("a", "n1", notReady, 0))
		f.Start()
		letPass(time.Hour)
		require.True(t, f.Unavailable("n1"))
		require.False(t, f.isWatched())
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
		"not once Lateen's is Ready there": {func(f *trackerFixture) {
			f.Update(velerosPod(notReady, 1))
			f.Update(agentPod("l", "n1", isReady, 2))
		}, false},
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
