package exposer

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/lateen-project/lateen/exposer/build"
)

func TestAClaimThatIsMadeAnewDuringADeliveryIsNotDelivered(t *testing.T) {
	for name, bound := range map[string]bool{"before it is bound": false, "when it is bound to an empty volume": true} {
		t.Run(name, func(t *testing.T) {
			move := download()
			stray := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
				Namespace: "velero", Name: "b1", UID: "stray-uid", Labels: build.Ours(move.UID, "n2"),
				OwnerReferences: []metav1.OwnerReference{{UID: move.UID, Controller: new(true)}},
			}}
			empty := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "empty", UID: "empty-uid"}}
			if bound {
				stray.Spec.VolumeName = "empty"
				empty.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "velero", Name: "b1", UID: "stray-uid"}
			}
			restored := &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{
					Name: "restored", UID: "restored-uid", Labels: map[string]string{build.LabelRebind: string(move.UID)},
					Annotations: map[string]string{build.AnnotationReclaimPolicy: "Delete"},
				},
				Spec: corev1.PersistentVolumeSpec{
					PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
					ClaimRef:                      &corev1.ObjectReference{Namespace: "velero", Name: "b1", UID: "gone-uid"},
				},
			}
			client := fake.NewClientset(freeClaim(), stray, empty, restored)
			found := Found{Claims: []*corev1.PersistentVolumeClaim{stray}}
			done, waits, err := exposed(client, build.Settings{}).Deliver(t.Context(), move, found)
			require.NoError(t, err)
			require.False(t, done)
			require.Equal(t, "target claim app/claim is not yet bound to PersistentVolume restored", waits)
			require.NotContains(t, left(t, client), "claim b1")
		})
	}
}
