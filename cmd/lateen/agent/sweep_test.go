package agent

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

func TestOnlyTheOrphanedClaimIsDeletedNotALaterOneOfItsName(t *testing.T) {
	for _, uid := range []types.UID{"orphan", "later"} {
		t.Run(string(uid), func(t *testing.T) {
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: uid}}
			kube := fake.NewClientset(claim)
			a := &assembly{clients: &clients{kube: kube}, exposing: &exposer.Exposer{Client: kube}}
			orphan := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "orphan"}}
			require.NoError(t, a.removeClaim(t.Context(), orphan))
			_, err := kube.CoreV1().PersistentVolumeClaims("velero").Get(t.Context(), "b1", metav1.GetOptions{})
			require.Equal(t, uid == "orphan", apierrors.IsNotFound(err), "%v", err)
		})
	}
}

func TestTheOwnerOfAnObjectIsFoundByItsUID(t *testing.T) {
	all := newStored[*velerov1.PodVolumeRestore]()
	require.NoError(t, all.Index(informers.ByUID, func(object *velerov1.PodVolumeRestore) []string { return []string{string(object.UID)} }))
	require.NoError(t, all.Add(restoreTo("pod", "settled", "n1", velerov1.PodVolumeRestorePhaseFailed)))
	require.NoError(t, all.Add(restoreTo("pod", "cleans-up", "n1", velerov1.PodVolumeRestorePhaseFailed, api.FinalizerPodVolume)))
	k := &kindController[*velerov1.PodVolumeRestore]{
		transfers: &reconcile.TransferReconciler[*velerov1.PodVolumeRestore]{Kind: transfer.PodVolumeRestore()}, resources: all,
	}
	for uid, want := range map[types.UID][2]bool{"settled": {true, true}, "cleans-up": {true, false}, "unknown": {}} {
		exists, done := k.owner(uid)
		require.Equal(t, want, [2]bool{exists, done}, uid)
	}
}
