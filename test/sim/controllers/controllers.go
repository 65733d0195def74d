// Package controllers has controllers of Kubernetes for an API server in memory: the scheduler, the Job controller, the volume
// controller and the snapshot controller. Nothing happens by itself: each returns the steps that it could take now, and the caller
// takes one. A step is valid until the next change of the API server.
package controllers

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// Step is something that a controller can do now.
type Step struct {
	Name string // of the controller, and what it does to which object
	Do   func()
}

// Cluster is an API server with its controllers.
type Cluster struct {
	API *apiserver.Server
	// Pick chooses one of the nodes on which a pod can run.
	Pick func(nodes []string) string
	// NoPods has the creation of the pods of Jobs fail.
	NoPods bool
	// Provision and Reclaim are steps of a driver for a claim without a volume, and for a released volume with the reclaim policy
	// Delete. The function is nil if the driver has nothing to do. They are nil if the driver is a client of the API server.
	Provision, Reclaim func(*apiserver.Object) (what string, do func())
}

// Create creates an object, which must succeed. Its status is set, too.
func (c *Cluster) Create(plural, namespace string, object any) *apiserver.Object {
	fields := content(object)
	status := fields["status"]
	created, err := c.API.Create(plural, namespace, fields, false)
	if err != nil {
		panic(fmt.Sprintf("create %s: %v", plural, err))
	}
	if status != nil {
		return c.Patch(plural, created, map[string]any{"status": status})
	}
	return created
}

// Patch changes fields of an object and of its status, which must succeed; nil values remove.
func (c *Cluster) Patch(plural string, object *apiserver.Object, fields map[string]any) *apiserver.Object {
	changed, patch := object, content(fields)
	_, status := patch["status"]
	status = status && c.API.HasStatus(plural)
	for _, sub := range []string{"", "status"} {
		if sub == "status" && !status || sub == "" && status && len(patch) == 1 {
			continue
		}
		var err error
		changed, err = c.API.Update(plural, object.GetNamespace(), object.GetName(), sub, false, func(now map[string]any) (map[string]any, error) {
			return merge(now, patch), nil
		})
		if err != nil {
			panic(fmt.Sprintf("patch %s %s: %v", plural, object.Key(), err))
		}
		if c.API.Get(plural, object.GetNamespace(), object.GetName()) == nil {
			break // its last finalizer is gone
		}
	}
	return changed
}

// Delete deletes an object as a client does, which must succeed.
func (c *Cluster) Delete(plural string, object *apiserver.Object) {
	if _, err := c.API.Delete(plural, object.GetNamespace(), object.GetName(), metav1.DeleteOptions{}); err != nil {
		panic(err)
	}
}

// Evict deletes a pod as the eviction API does, without a look at disruption budgets.
func (c *Cluster) Evict(object *apiserver.Object) {
	conditions := append(slices.Clone(apiserver.As[corev1.Pod](object).Status.Conditions), corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "EvictionByEvictionAPI",
		Message: "Eviction API: evicting", LastTransitionTime: c.Now(),
	})
	c.Patch("pods", object, map[string]any{"status": map[string]any{"conditions": conditions}})
	c.Delete("pods", object)
}

// RemovePod removes a pod as the kubelet does after its end.
func (c *Cluster) RemovePod(object *apiserver.Object) {
	uid := object.GetUID()
	options := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &uid}}
	if _, err := c.API.Delete("pods", object.GetNamespace(), object.GetName(), options); err != nil {
		panic(fmt.Sprintf("remove pod %s: %v", object.Key(), err))
	}
}

// RemoveFinalizer removes one finalizer of an object.
func (c *Cluster) RemoveFinalizer(plural string, object *apiserver.Object, name string) {
	left := slices.DeleteFunc(slices.Clone(object.GetFinalizers()), func(f string) bool { return f == name })
	c.Patch(plural, object, map[string]any{"metadata": map[string]any{"finalizers": left}})
}

// Now returns the time of the API server.
func (c *Cluster) Now() metav1.Time { return metav1.NewTime(c.API.Now()) }

// content encodes a typed object for the API server.
func content(object any) map[string]any {
	data, err := json.Marshal(object)
	fields := map[string]any{}
	if err == nil {
		err = utiljson.Unmarshal(data, &fields)
	}
	if err != nil {
		panic(fmt.Sprintf("encode %T: %v", object, err))
	}
	return fields
}

// merge is a JSON merge patch (RFC 7386).
func merge(into, patch map[string]any) map[string]any {
	for key, value := range patch {
		deeper, isMap := value.(map[string]any)
		below, both := into[key].(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isMap && both:
			into[key] = merge(below, deeper)
		default:
			into[key] = value
		}
	}
	return into
}

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
