package sim

import (
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/sim/apiserver"
	"github.com/lateen-project/lateen/test/sim/controllers"
)

// snapshotting plays the snapshot controller and the driver's sidecar.
func (s *Simulation) snapshotting() (all []choice) {
	all = controlled(s.Snapshots())
	for _, object := range s.API.List("volumesnapshotcontents") {
		if act, do := s.sidecar(object); do != nil && s.faults.driver == 0 {
			all = append(all, choice{"csi-snapshotter: " + act + " " + object.Key(), often, do})
		}
	}
	return all
}

// sidecar returns the next act of the driver's sidecar, or nil.
func (s *Simulation) sidecar(object *apiserver.Object) (string, func()) {
	of := apiserver.As[snapshotv1.VolumeSnapshotContent](object)
	handle := ""
	if of.Status != nil && of.Status.SnapshotHandle != nil {
		handle = *of.Status.SnapshotHandle
	}
	switch {
	case of.DeletionTimestamp != nil && !metav1.HasAnnotation(of.ObjectMeta, controllers.BeingDeleted):
		return "", nil
	case of.DeletionTimestamp != nil && handle != "" && of.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete:
		return "deletes the snapshot of", func() {
			delete(s.storage.snapshots, handle)
			s.storage.deleted = append(s.storage.deleted, handle)
			s.Patch("volumesnapshotcontents", object, map[string]any{"status": map[string]any{"snapshotHandle": nil, "readyToUse": nil}})
		}
	case of.DeletionTimestamp != nil && slices.Contains(of.Finalizers, controllers.ContentFinalizer):
		return "releases", func() { s.RemoveFinalizer("volumesnapshotcontents", object, controllers.ContentFinalizer) }
	case of.DeletionTimestamp != nil:
		return "", nil
	case !slices.Contains(of.Finalizers, controllers.ContentFinalizer) && time.Now().Before(s.lag.protection):
		return "", nil
	case !slices.Contains(of.Finalizers, controllers.ContentFinalizer):
		return "protects", func() {
			s.Patch("volumesnapshotcontents", object, map[string]any{"metadata": map[string]any{"finalizers": append(of.Finalizers, controllers.ContentFinalizer)}})
		}
	case of.Status == nil || !ptr.Deref(of.Status.ReadyToUse, false) && !metav1.HasAnnotation(of.ObjectMeta, controllers.BeingDeleted):
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
		s.Patch("volumesnapshotcontents", object, map[string]any{"status": map[string]any{"snapshotHandle": handle, "readyToUse": true, "restoreSize": 1 << 30}})
	}
}

func (s *Simulation) has(handle string) bool { _, has := s.storage.snapshots[handle]; return has }
