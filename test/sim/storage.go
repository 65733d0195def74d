package sim

import (
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/sim/apiserver"
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

const (
	provisionedBy   = "pv.kubernetes.io/provisioned-by"
	bindCompleted   = "pv.kubernetes.io/bind-completed"
	boundController = "pv.kubernetes.io/bound-by-controller"
	claimProtection = "kubernetes.io/pvc-protection"
)

// binding plays the volume controller, the provisioner and the protection of claims.
func (s *Simulation) binding() (all []choice) {
	for _, object := range s.api.List("persistentvolumeclaims") {
		if act, do := s.bind(object); do != nil {
			all = append(all, choice{"volumes: " + act + " claim " + object.Key(), often, do})
		}
	}
	for _, object := range s.api.List("persistentvolumes") {
		if act, do := s.settle(object); do != nil {
			all = append(all, choice{"volumes: " + act + " volume " + object.Key(), often, do})
		}
	}
	return all
}

// bind returns the next act for a claim, or nil.
func (s *Simulation) bind(object *apiserver.Object) (string, func()) {
	claim := apiserver.As[corev1.PersistentVolumeClaim](object)
	switch {
	case claim.DeletionTimestamp != nil && !s.mounted(claim) && slices.Contains(claim.Finalizers, claimProtection):
		return "releases", func() { s.removeFinalizer("persistentvolumeclaims", object, claimProtection) }
	case claim.DeletionTimestamp != nil || claim.Status.Phase == corev1.ClaimBound:
		return "", nil
	case claim.Spec.VolumeName != "":
		volume := s.api.Get("persistentvolumes", "", claim.Spec.VolumeName)
		if volume == nil || !reservedFor(apiserver.As[corev1.PersistentVolume](volume), claim) {
			return "", nil
		}
		return "binds", func() { s.join(object, volume) }
	}
	for _, volume := range s.api.List("persistentvolumes") { // one that is reserved for it
		if ref := apiserver.As[corev1.PersistentVolume](volume).Spec.ClaimRef; ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name && (ref.UID == "" || ref.UID == claim.UID) {
			return "binds", func() { s.join(object, volume) }
		}
	}
	if claim.Spec.Selector != nil || ptr.Deref(claim.Spec.StorageClassName, "") != className || s.plan.WhenUsed && claim.Annotations[selectedNode] == "" || s.api.Get("storageclasses", "", className) == nil {
		return "", nil
	}
	from, ready := s.origin(claim)
	if !ready || s.faults.driver > 0 {
		return "", nil
	}
	return "provisions", func() { s.provision(claim, from) }
}

// mounted reports whether a pod uses a claim.
func (s *Simulation) mounted(claim *corev1.PersistentVolumeClaim) bool {
	for _, object := range s.api.List("pods") {
		pod := apiserver.As[corev1.Pod](object)
		if pod.Namespace != claim.Namespace || pod.Spec.NodeName == "" {
			continue
		}
		for _, volume := range pod.Spec.Volumes {
			if volume.PersistentVolumeClaim != nil && volume.PersistentVolumeClaim.ClaimName == claim.Name {
				return true
			}
		}
	}
	return false
}

func reservedFor(volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) bool {
	ref := volume.Spec.ClaimRef
	return ref == nil || ref.Namespace == claim.Namespace && ref.Name == claim.Name && (ref.UID == "" || ref.UID == claim.UID)
}

// join binds a claim and a volume to each other.
func (s *Simulation) join(claim, volume *apiserver.Object) {
	s.patch("persistentvolumes", volume, map[string]any{
		"spec": map[string]any{"claimRef": map[string]any{
			"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": claim.GetNamespace(), "name": claim.GetName(), "uid": string(claim.GetUID()),
		}},
		"status": map[string]any{"phase": string(corev1.VolumeBound)},
	})
	s.patch("persistentvolumeclaims", claim, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{bindCompleted: "yes", boundController: "yes"}},
		"spec":     map[string]any{"volumeName": volume.GetName()},
		"status":   map[string]any{"phase": string(corev1.ClaimBound)},
	})
}

// origin returns the content of a claim's data source, and whether it can be provisioned.
func (s *Simulation) origin(claim *corev1.PersistentVolumeClaim) (from string, ready bool) {
	source := claim.Spec.DataSource
	if source == nil {
		return "", true
	}
	object := s.api.Get("volumesnapshots", claim.Namespace, source.Name)
	if object == nil || object.GetDeletionTimestamp() != nil {
		return "", false
	}
	snapshot := apiserver.As[snapshotv1.VolumeSnapshot](object)
	if snapshot.Status == nil || !ptr.Deref(snapshot.Status.ReadyToUse, false) || snapshot.Status.BoundVolumeSnapshotContentName == nil {
		return "", false
	}
	bound := s.api.Get("volumesnapshotcontents", "", *snapshot.Status.BoundVolumeSnapshotContentName)
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
	if s.api.Get("persistentvolumes", "", "pvc-"+string(claim.UID)) == nil {
		s.create("persistentvolumes", "", persistentVolume(handle, "pvc-"+string(claim.UID), s.plan.reclaim(), claim))
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

// settle returns the next act for a volume, or nil.
func (s *Simulation) settle(object *apiserver.Object) (string, func()) {
	volume := apiserver.As[corev1.PersistentVolume](object)
	ref := volume.Spec.ClaimRef
	phase := func(to corev1.PersistentVolumePhase) (string, func()) {
		return "marks as " + string(to), func() {
			s.patch("persistentvolumes", object, map[string]any{"status": map[string]any{"phase": string(to)}})
		}
	}
	var claim *apiserver.Object
	if ref != nil {
		claim = s.api.Get("persistentvolumeclaims", ref.Namespace, ref.Name)
	}
	switch {
	case (ref == nil || ref.UID == "") && volume.Status.Phase != corev1.VolumeAvailable:
		return phase(corev1.VolumeAvailable)
	case ref != nil && ref.UID != "" && (claim == nil || claim.GetUID() != ref.UID) && volume.Status.Phase != corev1.VolumeReleased:
		return phase(corev1.VolumeReleased)
	case volume.Status.Phase == corev1.VolumeReleased && volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete && s.faults.driver == 0:
		return "deletes", func() { s.reclaim(object, volume.Spec.CSI.VolumeHandle) }
	}
	return "", nil
}

// reclaim deletes the bytes of a volume and the object.
func (s *Simulation) reclaim(object *apiserver.Object, handle string) {
	s.promises.deleteVolume(s, object, handle)
	delete(s.storage.volumes, handle)
	s.remove1("persistentvolumes", object)
}

// remove1 deletes an object with all its finalizers.
func (s *Simulation) remove1(plural string, object *apiserver.Object) {
	if _, err := s.api.Delete(plural, object.GetNamespace(), object.GetName(), metav1.DeleteOptions{}); err != nil {
		panic(fmt.Sprintf("delete %s %s: %v", plural, object.Key(), err))
	}
	if left := s.api.Get(plural, object.GetNamespace(), object.GetName()); left != nil {
		s.patch(plural, left, map[string]any{"metadata": map[string]any{"finalizers": nil}})
	}
}

func (s *Simulation) removeFinalizer(plural string, object *apiserver.Object, name string) {
	left := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == name })
	s.patch(plural, object, map[string]any{"metadata": map[string]any{"finalizers": left}})
}
