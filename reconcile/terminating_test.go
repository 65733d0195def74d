package reconcile

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/reconcile/capacity"
)

func TestATerminatingMoverOnAReadyNodeIsReportedOnce(t *testing.T) {
	s := newFixture(t, fault{})
	s.standsIn(t, velerov1.PodVolumeBackupPhaseFailed)
	s.Agent.Node, s.NodeSlots = testNode, capacity.NewNodeSlots(testNode, 1, 1)
	s.sent()
	s.terminate(t)
	s.clock.Step(time.Hour) // the clock of the API server is behind
	after, err := s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	require.Equal(t, s.Limits.CleanUpWarning, after)
	require.Empty(t, s.events.Events, "it has had no time to end")
	s.clock.Step(after)
	s.steps(t, 3)
	require.NotEmpty(t, s.object.Finalizers, "the mover may still run")
	events := s.sent()
	require.Len(t, events, 1)
	require.Contains(t, events[0], "Warning CleanUpWaits Mover pod b1 is being deleted, but the kubelet of node n1 has not confirmed its end within 1m0s")
	require.Contains(t, events[0], "kubectl -n velero describe pod b1")
}

func TestASnapshotThatIsNotDeletedInTimeIsReportedOnce(t *testing.T) {
	s := newDownload("")
	request := s.newRequest(testKey, s.object)
	request.state.CompletedAt, request.observed.Now = s.clock.Now(), s.clock.Now()
	require.Equal(t, s.Limits.CleanUpWarning, s.cleanUpWaits(t.Context(), request, "its driver"))
	require.Empty(t, s.sent())
	request.observed.Now = request.observed.Now.Add(s.Limits.CleanUpWarning)
	for range 2 {
		require.Zero(t, s.cleanUpWaits(t.Context(), request, "its driver"), "its event ends the wait")
	}
	require.Equal(t, []string{"Warning CleanUpWaits Snapshot is not deleted yet: its driver"}, s.sent())
}

func TestARefusedDeletionIsReportedOnce(t *testing.T) {
	for _, phase := range []velerov1.PodVolumeBackupPhase{velerov1.PodVolumeBackupPhaseCanceling, velerov1.PodVolumeBackupPhaseFailed} {
		t.Run(string(phase), func(t *testing.T) {
			s := newFixture(t, fault{})
			s.standsIn(t, phase)
			s.Agent.Node, s.NodeSlots = testNode, capacity.NewNodeSlots(testNode, 1, 1)
			s.sent()
			s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "b1", errors.New("by policy"))
			})
			for range 3 {
				_, err := s.Reconcile(t.Context(), testKey)
				require.Error(t, err)
			}
			require.Len(t, s.events.Events, 1)
			require.Contains(t, <-s.events.Events, "Warning CleanUpWaits delete mover pod b1: ")
		})
	}
}
