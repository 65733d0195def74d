package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
)

// blind is an empty pod cache.
type blind struct{}

func (blind) Mover(string) *corev1.Pod { return nil }
func (blind) Pod(string) *corev1.Pod   { return nil }

func TestNothingIsReadOfASettledTransfer(t *testing.T) {
	s := newWorking()
	s.object.Status.Phase, s.pods = velerov1.PodVolumeBackupPhaseFailed, nil
	require.Zero(t, s.step(t))
	require.Empty(t, s.kube.Actions())
}

func TestAnUncachedMoverIsDeletedBeforeTheFinalizerIsRemoved(t *testing.T) {
	s := newFixture(t, fault{})
	for range 2 { // accept, create the mover
		_, err := s.Reconcile(t.Context(), testKey)
		require.NoError(t, err)
	}
	require.NotNil(t, s.Mover(testKey))
	s.object.Status.Phase = velerov1.PodVolumeBackupPhaseCanceled
	s.Pods = blind{}
	requeue, err := s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	require.Nil(t, s.Mover(testKey))
	require.NotEmpty(t, s.object.Finalizers)
	require.Positive(t, requeue, "no event of a pod that no cache has will come")
	_, err = s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	require.Empty(t, s.object.Finalizers)
}
