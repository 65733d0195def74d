package embedded

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/lateen-project/lateen/test/sim/apiserver"
	"github.com/lateen-project/lateen/test/sim/controllers"
)

// tick is how often the controllers look at the clock, for the deadlines of Jobs.
const tick = time.Second

// mostSteps bounds the steps of the controllers after a change. More means that two of them undo each other's work.
const mostSteps = 100_000

// control runs the controllers after each change, until the context ends.
func (c *Cluster) control(ctx context.Context) {
	clock := time.NewTicker(tick)
	defer clock.Stop()
	for {
		c.lock.Lock()
		c.settle()
		changed := c.changed
		c.lock.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-clock.C:
		}
	}
}

// settle takes steps of the controllers until none is left.
func (c *Cluster) settle() {
	before := c.cluster.API.Revision()
	for range mostSteps {
		step, more := c.next()
		if !more {
			c.notify(before)
			return
		}
		step.Do()
	}
	step, _ := c.next()
	panic(fmt.Sprintf("the controllers do not settle: %s", step.Name))
}

// notify wakes the watches and the controllers if there was a change since a revision.
func (c *Cluster) notify(since int64) {
	if c.cluster.API.Revision() != since {
		close(c.changed)
		c.changed = make(chan struct{})
	}
}

// next returns a step that a controller can take.
func (c *Cluster) next() (controllers.Step, bool) {
	for _, steps := range []func() []controllers.Step{
		c.accounts, c.namespaces, c.daemons, c.cluster.Scheduler, c.cluster.Volumes, c.cluster.Snapshots, c.contents, c.cluster.Jobs, c.garbage,
	} {
		if found := steps(); len(found) > 0 {
			return found[0], true
		}
	}
	return controllers.Step{}, false
}

// accounts returns the steps of the controller of ServiceAccounts: each namespace has one by default.
func (c *Cluster) accounts() (all []controllers.Step) {
	for _, namespace := range c.cluster.API.List("namespaces") {
		name := namespace.GetName()
		if namespace.GetDeletionTimestamp() == nil && c.cluster.API.Get("serviceaccounts", name, "default") == nil {
			all = append(all, controllers.Step{Name: "accounts: create the default of " + name, Do: func() {
				c.cluster.Create("serviceaccounts", name, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
			}})
		}
	}
	return all
}

// content is the finalizer of a namespace until all of its objects are gone.
const content = "embedded.example.com/content"

// namespaces returns the steps of the namespace controller: it deletes the objects of a namespace that is being deleted.
func (c *Cluster) namespaces() (all []controllers.Step) {
	for _, namespace := range c.cluster.API.List("namespaces") {
		name, held := namespace.GetName(), slices.Contains(namespace.GetFinalizers(), content)
		switch {
		case namespace.GetDeletionTimestamp() == nil && !held:
			all = append(all, controllers.Step{Name: "namespace controller: protect " + name, Do: func() {
				c.cluster.Patch("namespaces", namespace, map[string]any{"metadata": map[string]any{"finalizers": []string{content}}})
			}})
		case namespace.GetDeletionTimestamp() != nil && held:
			all = append(all, c.empty(namespace)...)
		}
	}
	return all
}

// empty returns the steps that end a namespace that is being deleted.
func (c *Cluster) empty(namespace *apiserver.Object) (all []controllers.Step) {
	left := false
	for _, resource := range apiserver.Resources() {
		plural := resource.Resource
		for _, object := range c.cluster.API.List(plural) {
			if !resource.Namespaced || object.GetNamespace() != namespace.GetName() {
				continue
			}
			if left = true; object.GetDeletionTimestamp() == nil {
				all = append(all, controllers.Step{Name: "namespace controller: delete " + plural + " " + object.Key(), Do: func() {
					c.cluster.Delete(plural, object)
				}})
			}
		}
	}
	if !left {
		all = append(all, controllers.Step{Name: "namespace controller: release " + namespace.GetName(), Do: func() {
			c.cluster.RemoveFinalizer("namespaces", namespace, content)
		}})
	}
	return all
}

// daemons returns the steps of the DaemonSet controller: a pod on each node that fits.
func (c *Cluster) daemons() (all []controllers.Step) {
	for _, object := range c.cluster.API.List("daemonsets") {
		set := apiserver.As[appsv1.DaemonSet](object)
		has := map[string]bool{}
		for _, object := range c.cluster.API.List("pods") {
			if metav1.IsControlledBy(object, set) {
				has[apiserver.As[corev1.Pod](object).Spec.NodeName] = true
			}
		}
		required := nodeaffinity.GetRequiredNodeAffinity(&corev1.Pod{Spec: set.Spec.Template.Spec})
		for _, object := range c.cluster.API.List("nodes") {
			node := apiserver.As[corev1.Node](object)
			if fits, err := required.Match(node); err == nil && fits && !has[node.Name] {
				all = append(all, controllers.Step{Name: "DaemonSet controller: create a pod of " + set.Name, Do: func() { c.daemon(set, node.Name) }})
			}
		}
	}
	return all
}

func (c *Cluster) daemon(set *appsv1.DaemonSet, node string) {
	template := set.Spec.Template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: template.ObjectMeta, Spec: template.Spec}
	pod.GenerateName, pod.Spec.NodeName = set.Name+"-", node
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))}
	c.cluster.Create("pods", set.Namespace, pod)
}

// contents returns the steps of the snapshot controller that protect a VolumeSnapshotContent from its deletion.
func (c *Cluster) contents() (all []controllers.Step) {
	for _, content := range c.cluster.API.List("volumesnapshotcontents") {
		if content.GetDeletionTimestamp() == nil && !slices.Contains(content.GetFinalizers(), controllers.ContentFinalizer) {
			all = append(all, controllers.Step{Name: "snapshot-controller: protect " + content.Key(), Do: func() {
				finalizers := append(content.GetFinalizers(), controllers.ContentFinalizer)
				c.cluster.Patch("volumesnapshotcontents", content, map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
			}})
		}
	}
	return all
}

// garbage returns the steps of the garbage collector.
func (c *Cluster) garbage() (all []controllers.Step) {
	for _, one := range c.cluster.API.Garbage() {
		all = append(all, controllers.Step{Name: "garbage collector: delete " + one.Plural + " " + one.Key(), Do: func() {
			c.cluster.Delete(one.Plural, one.Object)
		}})
	}
	return all
}
