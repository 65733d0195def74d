package controllers

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
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
	c.Patch("persistentvolumeclaims", claim, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{bindCompleted: "yes", boundController: "yes"}},
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
