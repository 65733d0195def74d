package controllers

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// SelectedNode is the annotation of a claim with the node of its first consumer.
const SelectedNode = "volume.kubernetes.io/selected-node"

// ClaimsOf returns the claims that a pod mounts, and whether all exist and are bound.
func (c *Cluster) ClaimsOf(pod *corev1.Pod) (claims []*apiserver.Object, bound bool) {
	bound = true
	for _, volume := range pod.Spec.Volumes {
		if volume.PersistentVolumeClaim == nil {
			continue
		}
		claim := c.API.Get("persistentvolumeclaims", pod.Namespace, volume.PersistentVolumeClaim.ClaimName)
		if claim == nil {
			return nil, false
		}
		claims = append(claims, claim)
		bound = bound && apiserver.As[corev1.PersistentVolumeClaim](claim).Status.Phase == corev1.ClaimBound
	}
	return claims, bound
}

// Scheduler returns the steps of the scheduler: it binds a pod to a node, and selects the node of a claim that waits for its first
// consumer.
func (c *Cluster) Scheduler() (all []Step) {
	for _, object := range c.API.List("pods") {
		pod := apiserver.As[corev1.Pod](object)
		if pod.Spec.NodeName != "" || Terminal(pod) || pod.DeletionTimestamp != nil {
			continue
		}
		nodes := c.fitting(pod)
		claims, bound := c.ClaimsOf(pod)
		if len(nodes) == 0 || claims == nil && !bound {
			continue
		}
		if bound {
			all = append(all, Step{"scheduler: binds pod " + object.Key(), func() { c.assign(object, c.Pick(nodes)) }})
			continue
		}
		for _, claim := range claims {
			if c.waitsForConsumer(claim) {
				all = append(all, Step{"scheduler: selects a node for claim " + claim.Key(), func() {
					c.Patch("persistentvolumeclaims", claim, map[string]any{"metadata": map[string]any{"annotations": map[string]any{SelectedNode: c.Pick(nodes)}}})
				}})
			}
		}
	}
	return all
}

// waitsForConsumer reports whether the provisioner waits until the scheduler selects a node for the claim.
func (c *Cluster) waitsForConsumer(object *apiserver.Object) bool {
	claim := apiserver.As[corev1.PersistentVolumeClaim](object)
	class := c.API.Get("storageclasses", "", ptr.Deref(claim.Spec.StorageClassName, ""))
	return class != nil && claim.Spec.VolumeName == "" && claim.Annotations[SelectedNode] == "" && claim.DeletionTimestamp == nil &&
		ptr.Deref(apiserver.As[storagev1.StorageClass](class).VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer
}

// fitting returns the nodes on which a pod can run.
func (c *Cluster) fitting(pod *corev1.Pod) (fit []string) {
	required := nodeaffinity.GetRequiredNodeAffinity(pod)
	for _, object := range c.API.List("nodes") {
		node := apiserver.As[corev1.Node](object)
		if matches, err := required.Match(node); err == nil && matches && !node.Spec.Unschedulable && reachable(node) && c.hasRoom(node, pod) {
			fit = append(fit, node.Name)
		}
	}
	return fit
}

// hasRoom reports whether a node has the resources that a pod requests. A node has any amount of what it does not list.
func (c *Cluster) hasRoom(node *corev1.Node, pod *corev1.Pod) bool {
	if len(node.Status.Allocatable) == 0 {
		return true
	}
	requests := resource.PodRequests(pod, resource.PodResourcesOptions{})
	for _, object := range c.API.List("pods") {
		if other := apiserver.As[corev1.Pod](object); other.Spec.NodeName == node.Name && !Terminal(other) {
			for name, more := range resource.PodRequests(other, resource.PodResourcesOptions{}) {
				sum := requests[name].DeepCopy()
				sum.Add(more)
				requests[name] = sum
			}
		}
	}
	for name, all := range node.Status.Allocatable {
		if asked := requests[name]; asked.Cmp(all) > 0 {
			return false
		}
	}
	return true
}

func reachable(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func (c *Cluster) assign(pod *apiserver.Object, node string) {
	c.Patch("pods", pod, map[string]any{
		"spec":   map[string]any{"nodeName": node},
		"status": map[string]any{"conditions": []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: c.Now()}}},
	})
}

// Terminal reports whether a pod has ended.
func Terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
