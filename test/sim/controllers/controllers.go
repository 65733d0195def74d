// Package controllers has controllers of Kubernetes for an API server in memory: the scheduler, the Job controller, the volume
// controller and the snapshot controller. Nothing happens by itself: each returns the steps that it could take now, and the caller
// takes one. A step is valid until the next change of the API server.
package controllers

import (
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
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
