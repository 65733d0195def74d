package exposer

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

func inPlace() objects.MoverSpec {
	spec := download()
	spec.Source.Target.Volume = "existing"
	return spec
}

// existingVolume is the volume of an in-place restore as Velero's server leaves it: retained, and its claim is deleted.
func existingVolume(change func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "existing", UID: "existing-uid", ResourceVersion: "7"},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "app", Name: "claim", UID: "deleted"},
		},
	}
	change(volume)
	return volume
}

func TestAnExistingVolumeIsReservedForTheRestoreClaim(t *testing.T) {
	for name, ref := range map[string]*corev1.ObjectReference{
		"its claim is deleted": {Namespace: "app", Name: "claim", UID: "deleted"}, "it is available": nil,
		"an earlier restore claim is deleted": {Namespace: "velero", Name: "b1", UID: "earlier"},
	} {
		target := freeClaim()
		target.Annotations = map[string]string{objects.AnnotationSelectedNode: "n7"} // of its consumer before
		client := withUIDs(fake.NewClientset(target, existingVolume(func(volume *corev1.PersistentVolume) {
			volume.Spec.ClaimRef, volume.Labels = ref, map[string]string{api.LabelKept: "an-earlier-one"}
		})))
		_, err := exposed(client, objects.Settings{}).Ensure(t.Context(), inPlace())
		require.NoError(t, err, name)
		require.Equal(t, []string{
			"get persistentvolumeclaims", "get persistentvolumes", "create persistentvolumeclaims", "patch persistentvolumes", "create pods",
		}, requests(client), name)
		claim, err := client.CoreV1().PersistentVolumeClaims("velero").Get(t.Context(), "b1", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, "existing", claim.Spec.VolumeName)
		require.Empty(t, claim.Annotations[objects.AnnotationSelectedNode])
		volume, err := client.CoreV1().PersistentVolumes().Get(t.Context(), "existing", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "velero", Name: "b1", UID: "uid-of-b1"}, *volume.Spec.ClaimRef, name)
		require.Empty(t, volume.Labels)

		client.ClearActions()
		_, err = exposed(client, objects.Settings{}).Ensure(t.Context(), inPlace())
		require.NoError(t, err)
		require.NotContains(t, requests(client), "patch persistentvolumes", "it is reserved already")
	}
}

func TestWithoutAReservedVolumeNoMoverIsCreated(t *testing.T) {
	spec := inPlace()
	refuses := func(verb, resource string, answer error) func(*fake.Clientset) {
		return func(client *fake.Clientset) {
			client.PrependReactor(verb, resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
				if patch, ok := action.(clienttesting.PatchAction); ok {
					require.Contains(t, string(patch.GetPatch()), `"resourceVersion":"7"`)
				}
				return true, nil, answer
			})
		}
	}
	for says, change := range map[string]func(*fake.Clientset){
		"create claim b1": refuses("create", "persistentvolumeclaims", apierrors.NewForbidden(corev1.Resource("claims"), "b1", nil)),
		"reserve PersistentVolume existing for claim velero/b1": refuses("patch", "persistentvolumes", apierrors.NewConflict(corev1.Resource("volumes"), "existing", nil)),
		"claim velero/b1 is for another volume": func(client *fake.Clientset) { // it is of an agent of Velero
			owner := metav1.OwnerReference{Kind: "DataDownload", UID: spec.UID, Controller: new(true)}
			require.NoError(t, client.Tracker().Add(&corev1.PersistentVolumeClaim{
				ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", OwnerReferences: []metav1.OwnerReference{owner}},
				Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "new"},
			}))
		},
	} {
		client := fake.NewClientset(freeClaim(), existingVolume(func(*corev1.PersistentVolume) {}))
		change(client)
		_, err := exposed(client, objects.Settings{}).Ensure(t.Context(), spec)
		require.ErrorContains(t, err, says)
		require.Equal(t, says == "claim velero/b1 is for another volume", errors.As(err, new(*TerminalError)), "%s: the next attempt reads it again", says)
		require.NotContains(t, requests(client), "create pods")
	}
}

func TestAnExistingVolumeThatCannotBeRestoredInPlace(t *testing.T) {
	for says, change := range map[string]func(*corev1.PersistentVolume){
		`"existing" not found`: func(volume *corev1.PersistentVolume) { volume.Name = "another" },
		"in place: it is being deleted": func(volume *corev1.PersistentVolume) {
			volume.DeletionTimestamp, volume.Finalizers = &metav1.Time{}, []string{"f"}
		},
		"its reclaim policy is not Retain": func(volume *corev1.PersistentVolume) {
			volume.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
		},
		"it belongs to claim app/other":                   func(volume *corev1.PersistentVolume) { volume.Spec.ClaimRef.Name = "other" },
		"it belongs to claim app/claim":                   func(volume *corev1.PersistentVolume) { volume.Spec.ClaimRef.UID = freeTarget().UID },
		"it belongs to claim other/claim":                 func(volume *corev1.PersistentVolume) { volume.Spec.ClaimRef.Namespace = "other" },
		"its volume mode is not that of the target claim": func(volume *corev1.PersistentVolume) { volume.Spec.VolumeMode = new(corev1.PersistentVolumeBlock) },
	} {
		client := fake.NewClientset(freeTarget(), existingVolume(change))
		_, err := exposed(client, objects.Settings{}).Ensure(t.Context(), inPlace())
		require.ErrorContains(t, err, says)
		require.ErrorAs(t, err, new(*TerminalError), says)
		require.NotContains(t, requests(client), "create persistentvolumeclaims", says)
	}
}
