package informers

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"
)

// CoordinatorCaches holds the informers of an agent that coordinates:
//
//	Movers    Velero's namespace: the movers of all transfers, wherever they run
//	Claims    Velero's namespace: the volumes of these movers
//	Agents    Velero's namespace, by label: the pods of node-agents
//	Classes   StorageClasses: cluster-scoped, few, and each moved snapshot needs one
type CoordinatorCaches struct {
	group
	Movers  *Informer[*corev1.Pod]
	Claims  *Informer[*corev1.PersistentVolumeClaim]
	Agents  *Informer[*corev1.Pod]
	Classes *Informer[*storagev1.StorageClass]
}

// NewCoordinatorCaches returns the informers of one term; Run starts them.
func NewCoordinatorCaches(kube kubernetes.Interface, want Selectors) (*CoordinatorCaches, error) {
	b := group{}
	pods := kube.CoreV1().Pods(want.Namespace)
	term := &CoordinatorCaches{
		Movers:  add(&b, "all mover pods", pods, &corev1.Pod{}, Scope{Labels: want.OwnedLabels}, trimPod),
		Claims:  add(&b, "all claims of movers", kube.CoreV1().PersistentVolumeClaims(want.Namespace), &corev1.PersistentVolumeClaim{}, Scope{Labels: want.OwnedLabels}, noTrim[*corev1.PersistentVolumeClaim]),
		Agents:  add(&b, "pods of node-agents", pods, &corev1.Pod{}, Scope{Labels: want.AgentLabels}, trimAgent),
		Classes: add(&b, "storageclasses", kube.StorageV1().StorageClasses(), &storagev1.StorageClass{}, Scope{}, noTrim[*storagev1.StorageClass]),
	}
	term.group = b
	return term, b.err
}

// SetCoordinator sets the caches of the current term; nil ends it.
func (c *Caches) SetCoordinator(term *CoordinatorCaches) { c.coordinator.Store(term) }

// Coordinator returns the informers of the current term; nil if this agent does not coordinate.
func (c *Caches) Coordinator() *CoordinatorCaches { return c.coordinator.Load() }

// StorageClass returns the cached class of that name; nil if there is none, or if this agent does not coordinate.
func (c *Caches) StorageClass(name string) *storagev1.StorageClass {
	term := c.Coordinator()
	if term == nil {
		return nil
	}
	class, _ := term.Classes.Get(name)
	return class
}
