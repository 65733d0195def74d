package informers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// CoordinatorCaches holds the informers of an agent that coordinates:
//
//	Movers    Velero's namespace: the movers of all transfers, wherever they run
//	Agents    Velero's namespace, by label: the pods of node-agents
//	Classes   StorageClasses: cluster-scoped, few, and each moved snapshot needs one
type CoordinatorCaches struct {
	Movers  *Informer[*corev1.Pod]
	Agents  *Informer[*corev1.Pod]
	Classes *Informer[*storagev1.StorageClass]

	all []informer
}

// NewCoordinatorCaches returns the informers of one term; Run starts them.
func NewCoordinatorCaches(kube kubernetes.Interface, want Selectors) (*CoordinatorCaches, error) {
	b := builder{}
	pods := kube.CoreV1().Pods(want.Namespace)
	term := &CoordinatorCaches{
		Movers:  add(&b, "all mover pods", pods, &corev1.Pod{}, Scope{Labels: want.OwnedLabels}, trimPod),
		Agents:  add(&b, "pods of node-agents", pods, &corev1.Pod{}, Scope{Labels: want.AgentLabels}, trimAgent),
		Classes: add(&b, "storageclasses", kube.StorageV1().StorageClasses(), &storagev1.StorageClass{}, Scope{}, noTrim[*storagev1.StorageClass]),
	}
	term.all = b.created
	return term, b.err
}

// Run watches until the context ends. It returns when every informer has stopped.
func (t *CoordinatorCaches) Run(ctx context.Context) { run(ctx, t.all) }

// Synced returns checkers that are done when the caches hold what the API server had at the start.
func (t *CoordinatorCaches) Synced() []cache.DoneChecker { return synced(t.all) }

// Lacking describes the caches that are not synced, with the errors of their last requests; empty if all are synced.
func (t *CoordinatorCaches) Lacking() string { return lacking(t.all) }

// SetCoordinator sets the caches of the current term; nil ends it.
func (c *Caches) SetCoordinator(term *CoordinatorCaches) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.coordinator = term
}

// Coordinator returns the informers of the current term; nil if this agent does not coordinate.
func (c *Caches) Coordinator() *CoordinatorCaches {
	c.lock.RLock()
	defer c.lock.RUnlock()
	return c.coordinator
}

// StorageClass returns the cached class of that name; nil if there is none, or if this agent does not coordinate.
func (c *Caches) StorageClass(name string) *storagev1.StorageClass {
	term := c.Coordinator()
	if term == nil {
		return nil
	}
	class, _ := term.Classes.Get(name)
	return class
}
