package sim

import (
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/sim/apiserver"
	"github.com/lateen-project/lateen/test/sim/controllers"
)

// storage is what a CSI driver holds.
type storage struct {
	volumes   map[string]string    // content by handle
	snapshots map[string]string    // content by handle
	deleted   []string             // handles of snapshots, in order
	uploaded  map[types.UID]string // content by transfer
	restored  map[types.UID]bool   // pods whose volumes were restored
}

func newStorage() *storage {
	return &storage{volumes: map[string]string{}, snapshots: map[string]string{}, uploaded: map[types.UID]string{}, restored: map[types.UID]bool{}}
}

const provisionedBy = "pv.kubernetes.io/provisioned-by"

// provisioning returns the next act of the driver for a claim without a volume, or nil.
func (s *Simulation) provisioning(object *apiserver.Object) (string, func()) {
	claim := apiserver.As[corev1.PersistentVolumeClaim](object)
	if claim.Spec.Selector != nil || ptr.Deref(claim.Spec.StorageClassName, "") != className || s.plan.WhenUsed && claim.Annotations[controllers.SelectedNode] == "" || s.API.Get("storageclasses", "", className) == nil {
		return "", nil
	}
	from, ready := s.origin(claim)
	if !ready || s.faults.driver > 0 {
		return "", nil
	}
	return "provisions", func() { s.provision(claim, from) }
}

// origin returns the content of a claim's data source, and whether it can be provisioned.
func (s *Simulation) origin(claim *corev1.PersistentVolumeClaim) (from string, ready bool) {
	source := claim.Spec.DataSource
	if source == nil {
		return "", true
	}
	object := s.API.Get("volumesnapshots", claim.Namespace, source.Name)
	if object == nil || object.GetDeletionTimestamp() != nil {
		return "", false
	}
	snapshot := apiserver.As[snapshotv1.VolumeSnapshot](object)
	if snapshot.Status == nil || !ptr.Deref(snapshot.Status.ReadyToUse, false) || snapshot.Status.BoundVolumeSnapshotContentName == nil {
		return "", false
	}
	bound := s.API.Get("volumesnapshotcontents", "", *snapshot.Status.BoundVolumeSnapshotContentName)
	if bound == nil {
		return "", false
	}
	of := apiserver.As[snapshotv1.VolumeSnapshotContent](bound)
	if of.Status == nil || of.Status.SnapshotHandle == nil {
		return "", false
	}
	from, ready = s.storage.snapshots[*of.Status.SnapshotHandle]
	return from, ready
}

func (s *Simulation) provision(claim *corev1.PersistentVolumeClaim, from string) {
	handle := "vol-" + string(claim.UID)
	if _, exists := s.storage.volumes[handle]; !exists {
		s.storage.volumes[handle] = from
	}
	if s.API.Get("persistentvolumes", "", "pvc-"+string(claim.UID)) == nil {
		s.Create("persistentvolumes", "", persistentVolume(handle, "pvc-"+string(claim.UID), s.plan.reclaim(), claim))
	}
}

func persistentVolume(handle, name string, policy corev1.PersistentVolumeReclaimPolicy, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: driver}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: claim.Spec.Resources.Requests, AccessModes: claim.Spec.AccessModes, StorageClassName: className,
			PersistentVolumeReclaimPolicy: policy,
			ClaimRef:                      &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID},
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: handle}},
		},
	}
}

// reclaiming returns the act of the driver for a released volume: it deletes the bytes of a volume and the object.
func (s *Simulation) reclaiming(object *apiserver.Object) (string, func()) {
	if s.faults.driver > 0 {
		return "", nil
	}
	return "deletes", func() { s.reclaim(object, apiserver.As[corev1.PersistentVolume](object).Spec.CSI.VolumeHandle) }
}

func (s *Simulation) reclaim(object *apiserver.Object, handle string) {
	s.promises.deleteVolume(s, object, handle)
	delete(s.storage.volumes, handle)
	s.remove1("persistentvolumes", object)
}

// remove1 deletes an object with all its finalizers.
func (s *Simulation) remove1(plural string, object *apiserver.Object) {
	if _, err := s.API.Delete(plural, object.GetNamespace(), object.GetName(), metav1.DeleteOptions{}); err != nil {
		panic(fmt.Sprintf("delete %s %s: %v", plural, object.Key(), err))
	}
	if left := s.API.Get(plural, object.GetNamespace(), object.GetName()); left != nil {
		s.Patch(plural, left, map[string]any{"metadata": map[string]any{"finalizers": nil}})
	}
}
