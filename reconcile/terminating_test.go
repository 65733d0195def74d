package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/reconcile/capacity"
)

func TestATerminatingMoverOnAReadyNodeIsReportedOnce(t *testing.T) {
	s := newFixture(t, fault{})
	s.standsIn(t, velerov1.PodVolumeBackupPhaseFailed)
	s.Agent.Node, s.NodeSlots = testNode, capacity.NewNodeSlots(testNode, 1, 1)
	for len(s.events.Events) > 0 {
		<-s.events.Events
	}
	s.terminate(t)
	after, err := s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	require.Equal(t, s.Limits.CleanUpWarning, after)
	require.Empty(t, s.events.Events, "it has had no time to end")
	s.clock.Step(after)
	s.steps(t, 3)
	require.NotEmpty(t, s.backup.Finalizers, "the mover may still run")
	require.Len(t, s.events.Events, 1)
	event := <-s.events.Events
	require.Contains(t, event, "Warning CleanUpWaits Mover pod b1 is being deleted, but the kubelet of node n1 has not confirmed its end within 1m0s")
	require.Contains(t, event, "kubectl -n velero describe pod b1")
}
