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

func (r *trackerFixture) Watch(name string, enqueue func()) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.entry(name).enqueue = enqueue
}

func (r *trackerFixture) Forget(name string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	r.nodes[name] = nil
}

func (r *trackerFixture) Node(name string) (node *corev1.Node, known bool) {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.entry(name).node, r.entry(name).known
}

func (r *trackerFixture) entry(name string) *watchedNode {
	if r.nodes[name] == nil {
		r.nodes[name] = &watchedNode{}
	}
	return r.nodes[name]
}

// isWatched reports whether the Node n1 is watched.
func (r *trackerFixture) isWatched() bool {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.entry("n1").enqueue != nil
}

// deliver sends the Node n1 through its watch. An empty status means that it does not exist.
func (r *trackerFixture) deliver(t *testing.T, ready corev1.ConditionStatus) {
	t.Helper()
	r.lock.Lock()
	of := r.entry("n1")
	of.known, of.node = true, nil
	if ready != "" {
		of.node = &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionTrue}, {Type: corev1.NodeReady, Status: ready},
		}}}
	}
	enqueue := of.enqueue
	r.lock.Unlock()
	require.NotNil(t, enqueue, "the node is not watched")
	enqueue()
}

func TestANodeThatIsNotReadyForTheGracePeriodIsLost(t *testing.T) {
	for name, state := range map[string]corev1.ConditionStatus{"it does not answer": corev1.ConditionUnknown, "it says so": notReady, "it was deleted": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTrackerFixture()
				r.Start()
				r.Update(agentPod("a", "n1", isReady, 0))
				require.False(t, r.Lost("n1"))
				require.False(t, r.isWatched(), "a Node whose agent is Ready answers")
				r.Update(agentPod("a", "n1", notReady, 1))
				require.True(t, r.isWatched(), "it was requested")
				r.deliver(t, state)
				letPass(time.Minute - 1)
				require.False(t, r.Lost("n1"))
				letPass(1)
				require.True(t, r.Lost("n1"))
				require.Equal(t, []string{"n1 true"}, r.takeChanges()[:1])
				r.Update(agentPod("a", "n1", isReady, 200))
				require.False(t, r.Lost("n1"))
				require.False(t, r.isWatched())
				require.Equal(t, []string{"n1 false"}, r.takeChanges()[:1])
			})
		})
	}
}

func TestANodeIsNotLostWhileItIsReadyOrUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerFixture()
		r.Start()
		require.False(t, r.Lost("n1"))
		require.True(t, r.isWatched(), "it has no agent")
		letPass(time.Hour)
		require.True(t, r.Unavailable("n1"))
		require.False(t, r.Lost("n1"), "the watch has shown nothing")
		r.deliver(t, isReady)
		letPass(time.Hour)
		require.False(t, r.Lost("n1"), "only its agent is away")
		r.takeChanges()
		r.deliver(t, notReady)
		letPass(time.Minute - 1)
		r.deliver(t, isReady) // a short outage
		letPass(time.Hour)
		require.False(t, r.Lost("n1"))
		require.Empty(t, r.takeChanges())
		r.deliver(t, notReady)
		letPass(time.Minute)
		require.Equal(t, []string{"n1 true"}, r.takeChanges(), "a change to report")
		require.True(t, r.Lost("n1"))
		r.Stop()
		require.False(t, r.Lost("n1"))
		require.False(t, r.isWatched())
	})
}

func TestANodeIsWatchedOnRequestOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerFixture()
		r.Update(agentPod("a", "n1", notReady, 0))
		r.Start()
		letPass(time.Hour)
		require.True(t, r.Unavailable("n1"))
		require.False(t, r.isWatched())
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
		happens func(r *trackerFixture)
		veleros bool
	}{
		"while it is Ready":                 {func(*trackerFixture) { letPass(time.Hour) }, true},
		"while it is away for a short time": {func(r *trackerFixture) { r.Update(velerosPod(notReady, 1)); letPass(time.Minute - 1) }, true},
		"while it terminates":               {func(r *trackerFixture) { r.Update(terminating(velerosPod(isReady, 0))) }, true},
		"not when it is away for longer":    {func(r *trackerFixture) { r.Update(velerosPod(notReady, 1)); letPass(time.Minute) }, false},
		"not once its pod is deleted":       {func(r *trackerFixture) { r.Delete(velerosPod(isReady, 0)) }, false},
		"not once Lateen's is Ready there": {func(r *trackerFixture) {
			r.Update(velerosPod(notReady, 1))
			r.Update(agentPod("l", "n1", isReady, 2))
		}, false},
	}
	for name, test := range after {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTrackerFixture()
				r.Start()
				r.Update(velerosPod(isReady, 0))
				require.True(t, r.RunsVelero("n1"))
				require.Len(t, r.takeChanges(), 1)
				test.happens(r)
				require.Equal(t, test.veleros, r.RunsVelero("n1"))
				if !test.veleros {
					require.NotEmpty(t, r.takeChanges(), "a change to report")
				}
				require.False(t, r.RunsVelero("n2"))
				require.False(t, r.RunsVelero(""))
			})
		})
	}
}
