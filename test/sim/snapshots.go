package sim

import (
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// Names of the external snapshotter (its pkg/utils).
const (
	snapshotFinalizer = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
	contentFinalizer  = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	beingDeleted      = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
)

// snapshotting plays the snapshot controller and the driver's sidecar.
func (s *Simulation) snapshotting() (all []choice) {
	for _, object := range s.api.List("volumesnapshots") {
		if act, do := s.snapshot(object); do != nil {
			all = append(all, choice{"snapshot-controller: " + act + " " + object.Key(), often, do})
		}
	}
	for _, object := range s.api.List("volumesnapshotcontents") {
		if act, do := s.sidecar(object); do != nil && s.faults.driver == 0 {
			all = append(all, choice{"csi-snapshotter: " + act + " " + object.Key(), often, do})
		}
	}
	return all
}

// snapshot returns the next act of the snapshot controller, or nil.
func (s *Simulation) snapshot(object *apiserver.Object) (string, func()) {
	snapshot := apiserver.As[snapshotv1.VolumeSnapshot](object)
	of := s.contentOf(snapshot)
	if snapshot.DeletionTimestamp != nil {
		return s.release(object, of)
	}
	switch {
	case !slices.Contains(snapshot.Finalizers, snapshotFinalizer):
		return "protects", func() {
			s.patch("volumesnapshots", object, map[string]any{"metadata": map[string]any{"finalizers": append(snapshot.Finalizers, snapshotFinalizer)}})
		}
	case of == nil && snapshot.Spec.Source.PersistentVolumeClaimName != nil && (snapshot.Status == nil || snapshot.Status.BoundVolumeSnapshotContentName == nil):
		handle := s.sourceOf(snapshot)
		if handle == "" {
			return "", nil
		}
		return "creates the content of", func() { s.createContent(snapshot, handle) }
	case of == nil:
		return "", nil
	}
	known := apiserver.As[snapshotv1.VolumeSnapshotContent](of)
	ready := known.Status != nil && ptr.Deref(known.Status.ReadyToUse, false)
	if snapshot.Status != nil && snapshot.Status.BoundVolumeSnapshotContentName != nil && ptr.Deref(snapshot.Status.ReadyToUse, false) == ready {
		return "", nil
	}
	return "updates", func() {
		s.patch("volumesnapshots", object, map[string]any{"status": map[string]any{
			"boundVolumeSnapshotContentName": of.GetName(), "readyToUse": ready, "restoreSize": "1Gi",
		}})
	}
}

// contentOf returns the content that is bound to a VolumeSnapshot, or nil.
func (s *Simulation) contentOf(snapshot *snapshotv1.VolumeSnapshot) *apiserver.Object {
	name := "snapcontent-" + string(snapshot.UID)
	if given := snapshot.Spec.Source.VolumeSnapshotContentName; given != nil {
		name = *given
	}
	of := s.api.Get("volumesnapshotcontents", "", name)
	if of == nil {
		return nil
	}
	ref := apiserver.As[snapshotv1.VolumeSnapshotContent](of).Spec.VolumeSnapshotRef
	if ref.Namespace != snapshot.Namespace || ref.Name != snapshot.Name || ref.UID != "" && ref.UID != snapshot.UID {
		return nil
	}
	return of
}

// release returns the next act for a VolumeSnapshot that is being deleted.
func (s *Simulation) release(object, of *apiserver.Object) (string, func()) {
	switch {
	case of != nil && of.GetAnnotations()[beingDeleted] == "":
		return "marks the content of", func() {
			s.patch("volumesnapshotcontents", of, map[string]any{"metadata": map[string]any{"annotations": map[string]any{beingDeleted: "yes"}}})
		}
	case of != nil && of.GetDeletionTimestamp() == nil && apiserver.As[snapshotv1.VolumeSnapshotContent](of).Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete:
		return "deletes the content of", func() { s.mustDelete("volumesnapshotcontents", of) }
	case of != nil && of.GetDeletionTimestamp() != nil:
		return "", nil // it waits for the sidecar
	case slices.Contains(object.GetFinalizers(), snapshotFinalizer):
		return "releases", func() { s.removeFinalizer("volumesnapshots", object, snapshotFinalizer) }
	}
	return "", nil
}

func (s *Simulation) mustDelete(plural string, object *apiserver.Object) {
	if _, err := s.api.Delete(plural, object.GetNamespace(), object.GetName(), metav1.DeleteOptions{}); err != nil {
		panic(err)
	}
}

// sourceOf returns the handle of the volume of which a snapshot is taken; empty if it was deleted.
func (s *Simulation) sourceOf(snapshot *snapshotv1.VolumeSnapshot) string {
	claim := s.api.Get("persistentvolumeclaims", snapshot.Namespace, *snapshot.Spec.Source.PersistentVolumeClaimName)
	if claim == nil {
		return ""
	}
	volume := s.api.Get("persistentvolumes", "", apiserver.As[corev1.PersistentVolumeClaim](claim).Spec.VolumeName)
	if volume == nil {
		return ""
	}
	return apiserver.As[corev1.PersistentVolume](volume).Spec.CSI.VolumeHandle
}

func (s *Simulation) createContent(snapshot *snapshotv1.VolumeSnapshot, handle string) {
	s.create("volumesnapshotcontents", "", &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "snapcontent-" + string(snapshot.UID), Finalizers: []string{contentFinalizer}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Kind: "VolumeSnapshot", Namespace: snapshot.Namespace, Name: snapshot.Name, UID: snapshot.UID},
			DeletionPolicy:    snapshotv1.VolumeSnapshotContentDelete, Driver: driver, VolumeSnapshotClassName: new(snapshotClass),
			Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &handle},
		},
	})
}

// sidecar returns the next act of the driver's sidecar, or nil.
func (s *Simulation) sidecar(object *apiserver.Object) (string, func()) {
	of := apiserver.As[snapshotv1.VolumeSnapshotContent](object)
	handle := ""
	if of.Status != nil && of.Status.SnapshotHandle != nil {
		handle = *of.Status.SnapshotHandle
	}
	switch {
	case of.DeletionTimestamp != nil && !metav1.HasAnnotation(of.ObjectMeta, beingDeleted):
		return "", nil
	case of.DeletionTimestamp != nil && handle != "" && of.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete:
		return "deletes the snapshot of", func() {
			delete(s.storage.snapshots, handle)
			s.storage.deleted = append(s.storage.deleted, handle)
			s.patch("volumesnapshotcontents", object, map[string]any{"status": map[string]any{"snapshotHandle": nil, "readyToUse": nil}})
		}
	case of.DeletionTimestamp != nil && slices.Contains(of.Finalizers, contentFinalizer):
		return "releases", func() { s.removeFinalizer("volumesnapshotcontents", object, contentFinalizer) }
	case of.DeletionTimestamp != nil:
		return "", nil
	case !slices.Contains(of.Finalizers, contentFinalizer) && time.Now().Before(s.lag.protection):
		return "", nil
	case !slices.Contains(of.Finalizers, contentFinalizer):
		return "protects", func() {
			s.patch("volumesnapshotcontents", object, map[string]any{"metadata": map[string]any{"finalizers": append(of.Finalizers, contentFinalizer)}})
		}
	case of.Status == nil || !ptr.Deref(of.Status.ReadyToUse, false) && !metav1.HasAnnotation(of.ObjectMeta, beingDeleted):
		return s.take(object, of)
	}
	return "", nil
}

// take takes a snapshot, or looks one up.
func (s *Simulation) take(object *apiserver.Object, of *snapshotv1.VolumeSnapshotContent) (string, func()) {
	handle := "snap-" + string(of.Spec.VolumeSnapshotRef.UID)
	if given := of.Spec.Source.SnapshotHandle; given != nil {
		if handle = *given; !s.has(handle) {
			return "", nil // the driver reports an error for ever
		}
	}
	return "takes", func() {
		if source := of.Spec.Source.VolumeHandle; source != nil && !s.has(handle) {
			s.storage.snapshots[handle] = s.storage.volumes[*source]
		}
		s.patch("volumesnapshotcontents", object, map[string]any{"status": map[string]any{"snapshotHandle": handle, "readyToUse": true, "restoreSize": 1 << 30}})
	}
}

func (s *Simulation) has(handle string) bool { _, has := s.storage.snapshots[handle]; return has }
