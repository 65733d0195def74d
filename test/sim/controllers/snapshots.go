package controllers

import (
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// Names of the external snapshotter (its pkg/utils).
const (
	snapshotFinalizer = "snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
	// ContentFinalizer is the one of the driver's sidecar.
	ContentFinalizer = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	// BeingDeleted is the annotation of a content whose VolumeSnapshot is deleted.
	BeingDeleted = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
)

// Snapshots returns the steps of the snapshot controller.
func (c *Cluster) Snapshots() (all []Step) {
	for _, object := range c.API.List("volumesnapshots") {
		if act, do := c.snapshot(object); do != nil {
			all = append(all, Step{"snapshot-controller: " + act + " " + object.Key(), do})
		}
	}
	return all
}

// snapshot returns the next act of the snapshot controller, or nil.
func (c *Cluster) snapshot(object *apiserver.Object) (string, func()) {
	snapshot := apiserver.As[snapshotv1.VolumeSnapshot](object)
	of := c.contentOf(snapshot)
	if snapshot.DeletionTimestamp != nil {
		return c.release(object, of)
	}
	switch {
	case !slices.Contains(snapshot.Finalizers, snapshotFinalizer):
		return "protects", func() {
			c.Patch("volumesnapshots", object, map[string]any{"metadata": map[string]any{"finalizers": append(snapshot.Finalizers, snapshotFinalizer)}})
		}
	case of == nil && snapshot.Spec.Source.PersistentVolumeClaimName != nil && (snapshot.Status == nil || snapshot.Status.BoundVolumeSnapshotContentName == nil):
		handle, class := c.sourceOf(snapshot), c.API.Get("volumesnapshotclasses", "", ptr.Deref(snapshot.Spec.VolumeSnapshotClassName, ""))
		if handle == "" || class == nil {
			return "", nil
		}
		return "creates the content of", func() { c.createContent(snapshot, apiserver.As[snapshotv1.VolumeSnapshotClass](class), handle) }
	case of == nil:
		return "", nil
	}
	known := apiserver.As[snapshotv1.VolumeSnapshotContent](of)
	ready := known.Status != nil && ptr.Deref(known.Status.ReadyToUse, false)
	if snapshot.Status != nil && snapshot.Status.BoundVolumeSnapshotContentName != nil && ptr.Deref(snapshot.Status.ReadyToUse, false) == ready {
		return "", nil
	}
	return "updates", func() {
		c.Patch("volumesnapshots", object, map[string]any{"status": map[string]any{
			"boundVolumeSnapshotContentName": of.GetName(), "readyToUse": ready, "restoreSize": "1Gi",
		}})
	}
}

// contentOf returns the content that is bound to a VolumeSnapshot, or nil.
func (c *Cluster) contentOf(snapshot *snapshotv1.VolumeSnapshot) *apiserver.Object {
	name := "snapcontent-" + string(snapshot.UID)
	if given := snapshot.Spec.Source.VolumeSnapshotContentName; given != nil {
		name = *given
	}
	of := c.API.Get("volumesnapshotcontents", "", name)
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
func (c *Cluster) release(object, of *apiserver.Object) (string, func()) {
	switch {
	case of != nil && of.GetAnnotations()[BeingDeleted] == "":
		return "marks the content of", func() {
			c.Patch("volumesnapshotcontents", of, map[string]any{"metadata": map[string]any{"annotations": map[string]any{BeingDeleted: "yes"}}})
		}
	case of != nil && of.GetDeletionTimestamp() == nil && apiserver.As[snapshotv1.VolumeSnapshotContent](of).Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete:
		return "deletes the content of", func() { c.Delete("volumesnapshotcontents", of) }
	case of != nil && of.GetDeletionTimestamp() != nil:
		return "", nil // it waits for the sidecar
	case slices.Contains(object.GetFinalizers(), snapshotFinalizer):
		return "releases", func() { c.RemoveFinalizer("volumesnapshots", object, snapshotFinalizer) }
	}
	return "", nil
}

// sourceOf returns the handle of the volume of which a snapshot is taken; empty if it was deleted.
func (c *Cluster) sourceOf(snapshot *snapshotv1.VolumeSnapshot) string {
	claim := c.API.Get("persistentvolumeclaims", snapshot.Namespace, *snapshot.Spec.Source.PersistentVolumeClaimName)
	if claim == nil {
		return ""
	}
	volume := c.API.Get("persistentvolumes", "", apiserver.As[corev1.PersistentVolumeClaim](claim).Spec.VolumeName)
	if volume == nil {
		return ""
	}
	return apiserver.As[corev1.PersistentVolume](volume).Spec.CSI.VolumeHandle
}

func (c *Cluster) createContent(snapshot *snapshotv1.VolumeSnapshot, class *snapshotv1.VolumeSnapshotClass, handle string) {
	c.Create("volumesnapshotcontents", "", &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: "snapcontent-" + string(snapshot.UID), Finalizers: []string{ContentFinalizer}},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{Kind: "VolumeSnapshot", Namespace: snapshot.Namespace, Name: snapshot.Name, UID: snapshot.UID},
			DeletionPolicy:    class.DeletionPolicy, Driver: class.Driver, VolumeSnapshotClassName: &class.Name,
			Source: snapshotv1.VolumeSnapshotContentSource{VolumeHandle: &handle},
		},
	})
}
