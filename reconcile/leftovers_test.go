package reconcile

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

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
	s.Pods = s.single // which caches nothing
	requeue, err := s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	require.Nil(t, s.Mover(testKey))
	require.NotEmpty(t, s.object.Finalizers)
	require.Positive(t, requeue, "no event of a pod that no cache has will come")
	_, err = s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	require.Empty(t, s.object.Finalizers)
}

func TestOnlyClaimsOfTheResourceAreItsLeftovers(t *testing.T) {
	for owner, left := range map[types.UID]bool{"b1-uid": true, "another": false} {
		s := newDownload("")
		s.object.Status.Phase, s.object.Finalizers = velerov2alpha1.DataDownloadPhaseFailed, []string{api.FinalizerData}
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "claim", OwnerReferences: []metav1.OwnerReference{{UID: owner, Controller: new(true)}}}}
		s.claims = map[string]*corev1.PersistentVolumeClaim{testKey: claim}
		request := s.observed(t)
		require.Equal(t, left, request.observed.HasLeftovers)
		require.Equal(t, left, len(s.found(request).Claims) == 1)
	}
}

func TestAMoverThatNoCacheHasIsNotLost(t *testing.T) {
	s := newRunning()
	s.pods["app/db"], s.live[testKey] = sourcePod(), moverPod()
	s.step(t)
	require.Equal(t, transfer.InProgress, s.state().Phase)
}

func TestADeletedResourceHoldsNothing(t *testing.T) {
	s := newWorking()
	s.step(t)
	require.Equal(t, 1, s.NodeSlots.Own().InUse())
	s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return nil, false }
	require.Zero(t, s.step(t))
	require.Zero(t, s.NodeSlots.Own().InUse())
	require.False(t, s.moverWatched)
	require.Zero(t, s.inactivity())
}
