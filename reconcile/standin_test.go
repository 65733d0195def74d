package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/reconcile/transfer"
)

func TestARestoreFailsAtOnceWhenItsPodIsDeletedBeforeItHasANode(t *testing.T) {
	s := newRestore()
	s.live["app/db"] = targetOn("")
	require.Equal(t, s.Limits.FollowTarget, s.step(t))
	require.Empty(t, s.watched, "the pod may be scheduled soon")
	s.clock.Step(s.Limits.FollowTarget)
	s.step(t)
	require.Equal(t, "app/db", s.watched.String())
	s.clock.Step(s.Limits.PrepareTimeout)
	s.step(t)
	require.Equal(t, transfer.New, s.state().Phase, "its pod may still be scheduled: %s", s.state().Message)
	loses(t, s)
	s.step(t)
	require.Empty(t, s.watched, "it has ended")
}

func TestARestoreNamesItsUnwatchedPodAtTheTimeout(t *testing.T) {
	s := newRestore()
	s.object.Spec.Pod.UID = ""
	s.Limits.PrepareTimeout = s.Limits.FollowTarget / 2
	s.step(t)
	s.clock.Step(s.Limits.PrepareTimeout)
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
	require.Contains(t, s.state().Message, "pod app/db does not exist")
}

// newFollowed returns a restore to a pod on n2, which the coordinator has observed for as long as it leaves it to others.
func newFollowed(t *testing.T) *single[*velerov1.PodVolumeRestore] {
	t.Helper()
	s := newRestore()
	s.live["app/db"] = targetOn("n2")
	s.step(t)
	s.clock.Step(s.Limits.FollowTarget)
	return s
}

// loses deletes the pod, and requires that the next step fails the restore.
func loses(t *testing.T, s *single[*velerov1.PodVolumeRestore]) {
	t.Helper()
	delete(s.live, "app/db")
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
	require.Contains(t, s.state().Message, "does not exist any more")
}

func TestARestoreFailsAtOnceWhenItsPodWasRecreated(t *testing.T) {
	s := newFollowed(t)
	s.live["app/db"].UID = "another"
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
}

func TestAnOldListDoesNotFailARestore(t *testing.T) {
	s := newFollowed(t)
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	s.oldPods = true
	s.step(t)
	require.Equal(t, transfer.New, s.state().Phase, s.state().Message)
	loses(t, s)
}

// TestARestoreFailsWhenItsPodWasDeletedDuringAnAgentRestart has a pod of which no agent knows.
func TestARestoreFailsWhenItsPodWasDeletedDuringAnAgentRestart(t *testing.T) {
	s := newFollowed(t)
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t), "the agent of n2 owns it until then")
	delete(s.live, "app/db")
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
	require.Empty(t, s.watched, "that agent sees it")
	require.Equal(t, transfer.New, s.state().Phase)

	enqueued := 0
	s.Enqueue = func(string) { enqueued++ }
	s.AgentReturned(testKey, "n3")
	require.Zero(t, enqueued)
	s.AgentReturned(testKey, "n2")
	require.Equal(t, 1, enqueued)
	loses(t, s)
}

// TestARestoreFailsWhenItsPodWasDeletedWhileItsAgentWasCutOff has an agent that stays Ready, but does not reach the API
// server while the pod exists. No event enqueues the restore.
func TestARestoreFailsWhenItsPodWasDeletedWhileItsAgentWasCutOff(t *testing.T) {
	s := newFollowed(t)
	within := s.step(t)
	s.clock.Step(within)
	require.Equal(t, within, s.step(t), "the pod waits for its other volumes")
	require.Equal(t, transfer.New, s.state().Phase)
	require.Empty(t, s.watched)
	s.clock.Step(within)
	loses(t, s)
}

func TestACancelDoesNotWaitForTheAgentOfADeletedPod(t *testing.T) {
	s := newFollowed(t)
	s.step(t)
	delete(s.live, "app/db")
	s.object.Spec.Cancel = true
	s.step(t)
	require.Equal(t, transfer.Canceled, s.state().Phase)
}

func TestACoordinatorTakesOverARestoreOfAMissingAgent(t *testing.T) {
	s := newFollowed(t)
	s.step(t)
	require.Empty(t, s.watched)
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t), "the time with an agent does not count")
	require.Equal(t, "app/db", s.watched.String())
	s.Agent.Fleet = coordinatorFleet{}
	s.step(t)
	require.Empty(t, s.watched)
	require.Equal(t, transfer.New, s.state().Phase)
}
