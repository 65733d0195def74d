package leader

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// trackerFixture is an AgentTracker that records its changes, in a synctest bubble.
type trackerFixture struct {
	*AgentTracker
	lock    sync.Mutex
	changes []string
	nodes   map[string]*watchedNode
}

func newTrackerFixture() *trackerFixture {
	r := &trackerFixture{nodes: map[string]*watchedNode{}}
	r.AgentTracker = NewAgentTracker(time.Minute, clock.RealClock{}, r, func(node string) {
		absent := r.Unavailable(node) // the callback may call the tracker
		r.lock.Lock()
		defer r.lock.Unlock()
		r.changes = append(r.changes, fmt.Sprint(node, " ", absent))
	})
	return r
}

// takeChanges returns the changes since its last call.
func (r *trackerFixture) takeChanges() []string {
	r.lock.Lock()
	defer r.lock.Unlock()
	observed := r.changes
	r.changes = nil
	return observed
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

const (
	isReady  = corev1.ConditionTrue
	notReady = corev1.ConditionFalse
)

func TestAnAgentThatIsReadyAgainIsReportedThoughItWasNeverUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerFixture()
		var returned []string
		r.Returned = func(node string) { returned = append(returned, node) }
		r.Update(agentPod("a", "n1", isReady, 0))
		r.Start()
		r.Update(agentPod("a", "n1", isReady, 0))
		require.Empty(t, returned, "it has been there")
		r.Update(agentPod("a", "n1", notReady, 1))
		r.Update(agentPod("a", "n1", isReady, 2))
		require.Equal(t, []string{"n1"}, returned, "its container was started again")
		r.Update(agentPod("b", "n1", isReady, 3))
		require.Equal(t, []string{"n1", "n1"}, returned, "it has another pod")
		require.Empty(t, r.takeChanges(), "no answer has changed")
		r.Stop()
	})
}

func TestAnAgentThatIsNotReadyForTheGracePeriodIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerFixture()
		r.Update(agentPod("a", "n1", isReady, 0))
		r.Start()
		letPass(time.Hour)
		require.False(t, r.Unavailable("n1"))
		r.Update(agentPod("a", "n1", notReady, 1))
		letPass(time.Minute - 1)
		r.Update(agentPod("a", "n1", notReady, 1))
		require.False(t, r.Unavailable("n1"))
		require.Empty(t, r.takeChanges())
		letPass(1)
		require.True(t, r.Unavailable("n1"))
		require.Equal(t, []string{"n1 true"}, r.takeChanges())
		letPass(time.Hour)
		r.Update(agentPod("a", "n1", isReady, 2))
		require.Equal(t, []string{"n1 false"}, r.takeChanges())
		require.False(t, r.Unavailable("n1"))
	})
}

func TestNoAgentIsUnavailableBeforeTheTermHasLastedForTheGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerFixture()
		r.Update(agentPod("a", "n1", notReady, -1000))
		letPass(time.Hour)
		require.False(t, r.Unavailable("n1"), "the cache is not complete: another pod may be Ready there")
		require.False(t, r.Unavailable("asked for early"))
		r.Start()
		require.False(t, r.Unavailable("unknown"))
		letPass(time.Minute - 1)
		require.Empty(t, r.takeChanges())
		letPass(1)
		require.ElementsMatch(t, []string{"n1 true", "asked for early true", "unknown true"}, r.takeChanges())
		require.True(t, r.Unavailable("asked for only now"), "it was never there")
		require.Empty(t, r.takeChanges(), "the caller gets the answer")
		r.Update(agentPod("b", "unknown", isReady, 0))
		require.Equal(t, []string{"unknown false"}, r.takeChanges())
	})
}

func TestOneReadyPodIsEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerFixture()
		r.Start()
		r.Update(agentPod("old", "n1", isReady, 0))
		r.Update(agentPod("new", "n1", notReady, 0))
		require.Equal(t, 1, r.Nodes())
		letPass(time.Hour)
		r.Update(agentPod("new", "n1", isReady, 1))
		r.Delete(agentPod("old", "n1", isReady, 0))
		letPass(time.Hour)
		require.False(t, r.Unavailable("n1"))
		require.Empty(t, r.takeChanges())
		r.Delete(agentPod("new", "n1", isReady, 1))
		require.Zero(t, r.Nodes())
		letPass(time.Minute)
		require.Equal(t, []string{"n1 true"}, r.takeChanges())
	})
}

func TestAnAgentThatTerminatesIsNotReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerFixture()
		r.Start()
		r.Update(agentPod("a", "n1", isReady, 0))
		letPass(time.Hour)
		r.Update(terminating(agentPod("a", "n1", isReady, 0)))
		letPass(time.Minute / 2)
		r.Update(terminating(agentPod("a", "n1", notReady, 30)))
		letPass(time.Minute / 2)
		require.Equal(t, []string{"n1 true"}, r.takeChanges(), "that its condition follows is not a new beginning")
	})
}

func TestTheGracePeriodRestartsWhenAnAgentWasReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerFixture()
		r.Start()
		r.Update(agentPod("a", "n1", notReady, 0))
		letPass(time.Minute - 1)
		r.Update(agentPod("a", "n1", notReady, 59)) // the watch has delivered only the last of two changes
		letPass(time.Minute - 1)
		require.Empty(t, r.takeChanges())
		letPass(1)
		require.Equal(t, []string{"n1 true"}, r.takeChanges())
		r.Update(agentPod("a", "n1", notReady, 120))
		require.Equal(t, []string{"n1 false"}, r.takeChanges())
		letPass(time.Minute)
		require.Equal(t, []string{"n1 true"}, r.takeChanges())
	})
}

func TestARecreatedPodReplacesTheOldOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerFixture()
		r.Start()
		r.Update(agentPod("a", "n1", isReady, 0))
		requeue := agentPod("a", "n1", notReady, 9)
		requeue.UID = "another"
		r.Update(requeue)
		r.Delete(agentPod("a", "n1", isReady, 0)) // a late event
		letPass(time.Minute)
		require.Equal(t, []string{"n1 true"}, r.takeChanges())
		requeue = agentPod("a", "n1", isReady, 10)
		requeue.UID = "another"
		r.Update(requeue)
		require.Equal(t, []string{"n1 false"}, r.takeChanges())
	})
}

func TestAnUnscheduledPodIsOnNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerFixture()
		r.Start()
		r.Update(agentPod("a", "", isReady, 0))
		r.Delete(agentPod("a", "", isReady, 0))
		letPass(time.Hour)
		require.Empty(t, r.takeChanges())
	})
}

func TestAfterTheTermNothingChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrackerFixture()
		r.Start()
		r.Update(agentPod("a", "n1", notReady, 0))
		letPass(time.Minute - 1)
		r.Stop()
		letPass(time.Hour)
		r.Update(agentPod("a", "n1", isReady, 0))
		require.Empty(t, r.takeChanges())
		require.False(t, r.Unavailable("n1"))
	})
}

// created returns the creation time of the resource with that age; smaller numbers are older.
func created(age int) time.Time { return time.Unix(1_800_000_000+int64(age), 0) }
