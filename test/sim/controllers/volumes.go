package controllers

import (
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// Names of Kubernetes' volume controllers.
const (
	bindCompleted   = "pv.kubernetes.io/bind-completed"
	boundController = "pv.kubernetes.io/bound-by-controller"
	claimProtection = "kubernetes.io/pvc-protection"
	pvProtection    = "kubernetes.io/pv-protection"
	// provisioner is the annotation of a claim with the driver that is asked for a volume.
	provisioner = "volume.kubernetes.io/storage-provisioner"
)

// Volumes returns the steps of the volume controller, of the protection of claims, and of the driver.
func (c *Cluster) Volumes() (all []Step) {
	for _, object := range c.API.List("persistentvolumeclaims") {
		if act, do := c.bind(object); do != nil {
			all = append(all, Step{"volumes: " + act + " claim " + object.Key(), do})
		}
	}
	for _, object := range c.API.List("persistentvolumes") {
		if act, do := c.settle(object); do != nil {
			all = append(all, Step{"volumes: " + act + " volume " + object.Key(), do})
		}
	}
	return all
}

// bind returns the next act for a claim, or nil.
func (c *Cluster) bind(object *apiserver.Object) (string, func()) {
	claim := apiserver.As[corev1.PersistentVolumeClaim](object)
	switch {
	case claim.DeletionTimestamp != nil && !c.mounted(claim) && slices.Contains(claim.Finalizers, claimProtection):
		return "releases", func() { c.RemoveFinalizer("persistentvolumeclaims", object, claimProtection) }
	case claim.DeletionTimestamp != nil || claim.Status.Phase == corev1.ClaimBound:
		return "", nil
	case claim.Spec.VolumeName != "":
		volume := c.API.Get("persistentvolumes", "", claim.Spec.VolumeName)
		if volume == nil || !reservedFor(apiserver.As[corev1.PersistentVolume](volume), claim) {
			return "", nil
		}
		return "binds", func() { c.Join(object, volume) }
	}
	for _, volume := range c.API.List("persistentvolumes") { // one that is reserved for it
		if ref := apiserver.As[corev1.PersistentVolume](volume).Spec.ClaimRef; ref != nil && ref.Namespace == claim.Namespace && ref.Name == claim.Name && (ref.UID == "" || ref.UID == claim.UID) {
			return "binds", func() { c.Join(object, volume) }
		}
	}
	if c.Provision != nil {
		return c.Provision(object)
	}
	return c.ask(object, claim)
}

// ask returns the act that asks the driver of a claim's class for a volume, or nil.
func (c *Cluster) ask(object *apiserver.Object, claim *corev1.PersistentVolumeClaim) (string, func()) {
	found := c.API.Get("storageclasses", "", ptr.Deref(claim.Spec.StorageClassName, ""))
	if found == nil || claim.Annotations[provisioner] != "" {
		return "", nil
	}
	class := apiserver.As[storagev1.StorageClass](found)
	if late := ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer; late && claim.Annotations[SelectedNode] == "" {
		return "", nil
	}
	return "asks for a volume of", func() {
		c.Patch("persistentvolumeclaims", object, map[string]any{"metadata": map[string]any{"annotations": map[string]any{provisioner: class.Provisioner}}})
	}
}

// mounted reports whether a pod uses a claim.
func (c *Cluster) mounted(claim *corev1.PersistentVolumeClaim) bool {
	for _, object := range c.API.List("pods") {
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

// Join binds a claim and a volume to each other.
func (c *Cluster) Join(claim, volume *apiserver.Object) {
	c.Patch("persistentvolumes", volume, map[string]any{
		"spec": map[string]any{"claimRef": map[string]any{
			"kind": "PersistentVolumeClaim", "apiVersion": "v1", "namespace": claim.GetNamespace(), "name": claim.GetName(), "uid": string(claim.GetUID()),
		}},
		"status": map[string]any{"phase": string(corev1.VolumeBound)},
	})
	annotations := map[string]any{bindCompleted: "yes"}
	if apiserver.As[corev1.PersistentVolumeClaim](claim).Spec.VolumeName == "" {
		annotations[boundController] = "yes"
	}
	c.Patch("persistentvolumeclaims", claim, map[string]any{
		"metadata": map[string]any{"annotations": annotations},
		"spec":     map[string]any{"volumeName": volume.GetName()},
		"status":   map[string]any{"phase": string(corev1.ClaimBound)},
	})
}

// settle returns the next act for a volume, or nil.
func (c *Cluster) settle(object *apiserver.Object) (string, func()) {
	volume := apiserver.As[corev1.PersistentVolume](object)
	ref := volume.Spec.ClaimRef
	phase := func(to corev1.PersistentVolumePhase) (string, func()) {
		return "marks as " + string(to), func() {
			c.Patch("persistentvolumes", object, map[string]any{"status": map[string]any{"phase": string(to)}})
		}
	}
	var claim *apiserver.Object
	if ref != nil {
		claim = c.API.Get("persistentvolumeclaims", ref.Namespace, ref.Name)
	}
	switch {
	case volume.DeletionTimestamp != nil && claim == nil && slices.Contains(volume.Finalizers, pvProtection):
		return "releases", func() { c.RemoveFinalizer("persistentvolumes", object, pvProtection) }
	case (ref == nil || ref.UID == "") && volume.Status.Phase != corev1.VolumeAvailable:
		return phase(corev1.VolumeAvailable)
	case ref != nil && ref.UID != "" && (claim == nil || claim.GetUID() != ref.UID) && volume.Status.Phase != corev1.VolumeReleased:
		return phase(corev1.VolumeReleased)
	case volume.Status.Phase == corev1.VolumeReleased && volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete && c.Reclaim != nil:
		return c.Reclaim(object)
	}
	return "", nil
}

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
