package exposer

import (
	"context"
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

// restoredVolume is the volume of a rebind after the restore claim was deleted.
func restoredVolume() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "restored", UID: "restored-uid", Labels: map[string]string{api.LabelRebind: string(download().UID)},
			Annotations: map[string]string{api.AnnotationReclaimPolicy: "Delete"},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			ClaimRef:                      &corev1.ObjectReference{Namespace: "velero", Name: "b1", UID: "gone-uid"},
		},
	}
}

// boundVolume is restoredVolume after Kubernetes bound it to the target.
func boundVolume() *corev1.PersistentVolume {
	volume := restoredVolume()
	volume.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "app", Name: "claim", UID: freeTarget().UID}
	volume.Status.Phase = corev1.VolumeBound
	return volume
}

// freeTarget is the unbound target.
func freeTarget() *corev1.PersistentVolumeClaim {
	claim := freeClaim()
	claim.UID = "target-uid"
	return claim
}

// staleFound is the content of a cache that lacks the deletions of the restore claim and the mover.
func staleFound() Existing {
	spec := download()
	pod := mover()
	pod.OwnerReferences[0].UID = spec.UID
	return Existing{Pod: pod, Claims: []*corev1.PersistentVolumeClaim{{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "velero", Name: "b1", UID: "gone-uid", Labels: objects.OwnerLabels(spec.UID, "n1"),
			OwnerReferences: []metav1.OwnerReference{{UID: spec.UID, Controller: new(true)}},
		},
		Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "restored"},
	}}}
}

// volumeNow returns restoredVolume from the API server.
func volumeNow(t *testing.T, client *fake.Clientset) *corev1.PersistentVolume {
	t.Helper()
	volume, err := client.CoreV1().PersistentVolumes().Get(t.Context(), "restored", metav1.GetOptions{})
	require.NoError(t, err)
	return volume
}

// Lost events: the cache still has the unbound restore claim. A previous version took its volume for missing, and
// the volume was deleted with the claim.
func TestAClaimCachedAsUnboundIsFetchedBeforeItsVolumeCountsAsMissing(t *testing.T) {
	volume := restoredVolume()
	volume.Labels, volume.Annotations, volume.Spec.PersistentVolumeReclaimPolicy = nil, nil, corev1.PersistentVolumeReclaimDelete
	volume.Status.Phase = corev1.VolumeBound
	stale := staleFound()
	bound := stale.Claims[0].DeepCopy()
	stale.Claims[0].Spec.VolumeName = ""
	client := fake.NewClientset(freeTarget(), volume, bound)

	_, err := exposed(client, objects.Settings{}).Rebind(t.Context(), download(), stale)

	require.NoError(t, err)
	require.Equal(t, string(download().UID), volumeNow(t, client).Labels[api.LabelRebind])
	require.Equal(t, corev1.PersistentVolumeReclaimRetain, volumeNow(t, client).Spec.PersistentVolumeReclaimPolicy)
	require.Equal(t, map[string]string{"b1": "gone-uid"}, deletedUIDs(t, client.Actions()), "of the mover and of the claim")
}

func TestTheVolumeOfAForeignClaimIsNotRestored(t *testing.T) {
	volume, foreign := restoredVolume(), staleFound().Claims[0]
	volume.Labels, foreign.OwnerReferences = nil, nil
	client := fake.NewClientset(freeTarget(), volume, foreign)
	const gone = "the restored volume does not exist any more"
	_, err := exposed(client, objects.Settings{}).Rebind(t.Context(), download(), Existing{})
	require.EqualError(t, err, gone)
	require.Equal(t, volume, volumeNow(t, client))
	_, err = exposed(fake.NewClientset(freeTarget()), objects.Settings{}).Rebind(t.Context(), download(), staleFound())
	require.EqualError(t, err, gone, "its claim names a volume that was deleted")
}

func TestAnAbandonedVolumeOfAScratchClaimIsDeleted(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.PersistentVolume)
		kept   bool
	}{
		"the restore claim is deleted": {change: func(*corev1.PersistentVolume) {}},
		"the scratch claim is deleted after it was bound": {change: func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef, v.Status.Phase = &corev1.ObjectReference{Namespace: "app", Name: "claim", UID: "gone"}, corev1.VolumeBound
		}},
		"it is of an administrator": {kept: true, change: func(v *corev1.PersistentVolume) { delete(v.Annotations, objects.AnnotationProvisionedBy) }},
	} {
		t.Run(name, func(t *testing.T) {
			volume, spec := restoredVolume(), download()
			metav1.SetMetaDataAnnotation(&volume.ObjectMeta, objects.AnnotationProvisionedBy, "csi.example.com")
			test.change(volume)
			target := *spec.Source.Target
			target.Scratch = true
			spec.Source.Target = &target
			client := fake.NewClientset(volume)
			bound, message, err := exposed(client, objects.Settings{}).AbandonRebind(t.Context(), spec, Existing{})
			require.NoError(t, err)
			require.False(t, bound)
			now := volumeNow(t, client)
			require.Equal(t, test.kept, now.Labels[api.LabelKept] != "")
			require.Equal(t, test.kept, now.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain)
			require.Equal(t, test.kept, message != "restored volume is deleted")
		})
	}
}

func TestAClaimRecreatedDuringARebindIsNotRebound(t *testing.T) {
	unclaimed := restoredVolume()
	unclaimed.Spec.ClaimRef = nil
	for name, test := range map[string]struct {
		bound    bool
		attempt  int // of the transfer; the claim is of attempt 0
		restored *corev1.PersistentVolume
	}{
		"before it is bound":                      {restored: restoredVolume()},
		"when it is bound to an empty volume":     {bound: true, restored: restoredVolume()},
		"after the restored volume was released":  {restored: unclaimed},
		"by a late request of an earlier attempt": {attempt: 1, bound: true, restored: unclaimed},
	} {
		t.Run(name, func(t *testing.T) {
			spec := download()
			spec.Attempt, spec.Source.Target.MoverNode = test.attempt, "n1" // an in-tree volume has no attachment
			stray := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
				Namespace: "velero", Name: "b1", UID: "stray-uid", Labels: objects.OwnerLabels(spec.UID, "n2"),
				OwnerReferences: []metav1.OwnerReference{{UID: spec.UID, Controller: new(true)}},
			}}
			empty := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "empty", UID: "empty-uid"}}
			if test.bound {
				stray.Spec.VolumeName = "empty"
				empty.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "velero", Name: "b1", UID: "stray-uid"}
			}
			client := fake.NewClientset(freeTarget(), stray, empty, test.restored)
			found := Existing{Claims: []*corev1.PersistentVolumeClaim{stray}}
			rebound, err := exposed(client, objects.Settings{}).Rebind(t.Context(), spec, found)
			require.NoError(t, err)
			require.Equal(t, Rebound{Waits: "target claim app/claim is not yet bound to PersistentVolume restored", Reserved: "target-uid"}, rebound)
			require.Equal(t, []string{"volume empty ", "volume restored Retain"}, left(t, client))
		})
	}
}

func TestAStaleAgentDoesNotRetainAReboundVolume(t *testing.T) {
	before, after := restoredVolume(), boundVolume()
	before.Labels, before.Annotations, before.Spec.PersistentVolumeReclaimPolicy = nil, nil, corev1.PersistentVolumeReclaimDelete
	after.Annotations, after.Spec.PersistentVolumeReclaimPolicy = nil, corev1.PersistentVolumeReclaimDelete
	before.ResourceVersion, after.ResourceVersion = "1", "2"
	found := staleFound()
	client := fake.NewClientset(freeTarget(), before, found.Claims[0])
	client.PrependReactor("patch", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch, ok := action.(clienttesting.PatchAction)
		require.True(t, ok)
		require.Contains(t, string(patch.GetPatch()), `"resourceVersion":"1"`)
		require.NoError(t, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), after, ""))
		return true, nil, apierrors.NewConflict(corev1.Resource("persistentvolumes"), after.Name, errors.New("the object has been modified"))
	})

	rebound, err := exposed(client, objects.Settings{}).Rebind(t.Context(), download(), found)

	require.NoError(t, err)
	require.True(t, rebound.Done)
	require.Equal(t, after, volumeNow(t, client))
}

// Velero's block mover restores to a device, and the target is a file system.
func TestARestoredDeviceIsReplacedByAFileSystem(t *testing.T) {
	volume, spec := restoredVolume(), download()
	spec.BlockMover = true
	volume.Spec.VolumeMode = new(corev1.PersistentVolumeBlock)
	volume.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "driver", VolumeHandle: "handle"}
	e := exposed(fake.NewClientset(freeTarget(), volume), objects.Settings{})
	failing := errors.New("no answer")
	e.TargetFSType = func(_ context.Context, namespace, name string) (string, error) {
		require.Equal(t, "velero/b1", namespace+"/"+name)
		return "xfs", failing
	}
	client := e.Client.(*fake.Clientset)
	_, err := e.Rebind(t.Context(), spec, Existing{})
	require.ErrorIs(t, err, failing)
	require.Equal(t, []string{"volume restored Retain"}, left(t, client))

	failing = nil
	rebound, err := e.Rebind(t.Context(), spec, Existing{})
	require.NoError(t, err)
	name := "pvc-" + string(spec.UID)
	require.Equal(t, Rebound{Waits: "target claim app/claim is not yet bound to PersistentVolume " + name, Reserved: "target-uid"}, rebound)
	require.Equal(t, []string{"volume " + name + " Retain"}, left(t, client))
	now, err := client.CoreV1().PersistentVolumes().Get(t.Context(), name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, &corev1.CSIPersistentVolumeSource{Driver: "driver", VolumeHandle: "handle", FSType: "xfs"}, now.Spec.CSI)
	require.Nil(t, now.Spec.VolumeMode)

	require.NoError(t, client.Tracker().Add(volume)) // the deletion was not answered, and not done
	again, err := e.Rebind(t.Context(), spec, staleFound())
	require.NoError(t, err)
	require.Equal(t, rebound, again)
	require.Equal(t, []string{"volume " + name + " Retain"}, left(t, client))

	require.NoError(t, client.Tracker().Add(volume))
	client.ClearActions()
	bound, message, err := e.AbandonRebind(t.Context(), spec, Existing{})
	require.NoError(t, err)
	require.False(t, bound)
	require.Equal(t, "restored volume kept as PersistentVolume "+name, message)
	require.Equal(t, []string{"volume " + name + " Retain"}, left(t, client), "one has the storage")

	require.NoError(t, client.Tracker().Add(volume))
	require.NoError(t, client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), now, "")) // it is kept no more
	client.PrependReactor("delete", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "restored", errors.New("by policy"))
	})
	_, message, err = e.AbandonRebind(t.Context(), spec, Existing{})
	require.NoError(t, err)
	require.Contains(t, message, "restored volume kept as PersistentVolume "+name+"; delete PersistentVolume restored: ")

	other := now.DeepCopy()
	other.Labels, other.UID = nil, "other-uid"
	e.Client = fake.NewClientset(freeTarget(), volume, other)
	_, err = e.Rebind(t.Context(), spec, Existing{})
	require.ErrorAs(t, err, new(*TerminalError))
	require.ErrorContains(t, err, "PersistentVolume "+name+" exists and is not the restored volume")
}
