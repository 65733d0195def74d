package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"

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
	delete(s.live, "app/db")
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
	require.Contains(t, s.state().Message, "does not exist any more")
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

func TestARestoreFailsAtOnceWhenItsPodWasRecreated(t *testing.T) {
	s := newRestore()
	s.live["app/db"] = targetOn("n2")
	s.live["app/db"].UID = "another"
	s.step(t)
	s.clock.Step(s.Limits.FollowTarget)
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
}

func TestAnOldListDoesNotFailARestore(t *testing.T) {
	s := newRestore()
	s.live["app/db"] = targetOn("n2")
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	s.oldPods = true
	s.step(t)
	s.clock.Step(s.Limits.FollowTarget)
	s.step(t)
	require.Equal(t, transfer.New, s.state().Phase, s.state().Message)
	delete(s.live, "app/db")
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
}

// TestARestoreFailsWhenItsPodWasDeletedDuringAnAgentRestart has a pod of which no agent knows.
func TestARestoreFailsWhenItsPodWasDeletedDuringAnAgentRestart(t *testing.T) {
	s := newRestore()
	s.live["app/db"] = targetOn("n2")
	s.step(t)
	s.clock.Step(s.Limits.FollowTarget)
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t), "the agent of n2 owns it until then")
	require.Empty(t, s.watched)
	delete(s.live, "app/db")
	s.step(t)
	require.Empty(t, s.watched, "that agent sees it")
	require.Equal(t, transfer.New, s.state().Phase)

	enqueued := 0
	s.Enqueue = func(string) { enqueued++ }
	s.AgentReturned(testKey, "n3")
	require.Zero(t, enqueued)
	s.AgentReturned(testKey, "n2")
	require.Equal(t, 1, enqueued)
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
	require.Contains(t, s.state().Message, "does not exist any more")
}

// TestARestoreFailsWhenItsPodWasDeletedWhileItsAgentWasCutOff has an agent that stays Ready, but does not reach the API
// server while the pod exists. No event enqueues the restore.
func TestARestoreFailsWhenItsPodWasDeletedWhileItsAgentWasCutOff(t *testing.T) {
	s := newRestore()
	s.live["app/db"] = targetOn("n2")
	s.step(t)
	s.clock.Step(s.Limits.FollowTarget)
	within := s.step(t)
	s.clock.Step(within)
	require.Equal(t, within, s.step(t), "the pod waits for its other volumes")
	require.Equal(t, transfer.New, s.state().Phase)
	require.Empty(t, s.watched)
	delete(s.live, "app/db")
	s.clock.Step(within)
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
	require.Contains(t, s.state().Message, "does not exist any more")
}

func TestACoordinatorTakesOverARestoreOfAMissingAgent(t *testing.T) {
	s := newRestore()
	s.live["app/db"] = targetOn("n2")
	s.step(t)
	s.clock.Step(s.Limits.FollowTarget)
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
