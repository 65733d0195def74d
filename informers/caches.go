package informers

import (
	"fmt"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/exposer/api"
)

// Selectors selects the objects that one agent watches.
type Selectors struct {
	Namespace     string // of Velero
	Node          string // of the agent
	OwnedLabels   string // selects the objects created for transfers, by any agent
	CreatedLabels string // selects those that this agent created
	AgentLabels   string // selects the pods of node-agents
}

// Caches holds all informers of an agent, each with the smallest sufficient scope:
//
//	Transfers   Velero's namespace; not those labelled as done, and terminal ones are trimmed to a few fields
//	LocalPods   the pods of this node in all namespaces: workloads and movers
//	Movers      Velero's namespace, by label: movers that this agent created, scheduled or not
//	Claims      Velero's namespace, by label: the volumes of these movers
//
// CoordinatorCaches holds what only the coordinator needs.
type Caches struct {
	group
	Transfers
	LocalPods *Informer[*corev1.Pod]
	Movers    *Informer[*corev1.Pod]
	Claims    *Informer[*corev1.PersistentVolumeClaim]

	created     createdPods
	coordinator atomic.Pointer[CoordinatorCaches] // nil while this agent does not coordinate
}

// NewCaches returns the informers; Run starts them.
func NewCaches(kube kubernetes.Interface, velero *Clientset, want Selectors) (*Caches, error) {
	for _, selector := range []string{want.OwnedLabels, want.CreatedLabels, want.AgentLabels} {
		if _, err := labels.Parse(selector); err != nil {
			return nil, fmt.Errorf("parse selector: %w", err)
		}
	}
	b, namespace := group{}, want.Namespace
	onNode := Scope{Fields: fields.OneTermEqualSelector("spec.nodeName", want.Node).String()}
	c := &Caches{
		Transfers: newTransfers(&b, velero, namespace),
		LocalPods: add(&b, "pods of this node", kube.CoreV1().Pods(metav1.NamespaceAll), &corev1.Pod{}, onNode, trimPod),
		Movers:    add(&b, "mover pods", kube.CoreV1().Pods(namespace), &corev1.Pod{}, Scope{Labels: want.CreatedLabels}, trimPod),
		Claims:    add(&b, "claims of movers", kube.CoreV1().PersistentVolumeClaims(namespace), &corev1.PersistentVolumeClaim{}, Scope{Labels: want.CreatedLabels}, noTrim[*corev1.PersistentVolumeClaim]),
	}
	if b.err != nil {
		return nil, b.err
	}
	c.group = b
	return c, c.index()
}

// Created records a mover that this agent created, as the API server returned it.
func (c *Caches) Created(mover *corev1.Pod) { c.created.add(mover) }

// DropCreated forgets the locally recorded pod before calling the handler. So a reconcile triggered by the pod's
// deletion does not see the recorded copy.
func (c *Caches) DropCreated(handle func(*corev1.Pod)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		c.created.drop(pod)
		handle(pod)
	}
}

// Mover returns the newest cached pod of that key. If no cache can have it yet, it returns the recorded copy; nil if
// there is none.
func (c *Caches) Mover(key string) *corev1.Pod {
	caches := []*Informer[*corev1.Pod]{c.LocalPods, c.Movers}
	if term := c.Coordinator(); term != nil {
		caches = append(caches, term.Movers)
	}
	var newest *corev1.Pod
	for _, pods := range caches {
		if pod, ok := pods.Get(key); ok && (newest == nil || api.IsNewer(pod.ResourceVersion, newest.ResourceVersion)) {
			newest = pod
		}
	}
	if newest == nil {
		return c.created.get(key, c.Movers.version())
	}
	c.created.drop(newest)
	return newest
}

// Pod returns the pod of that key if it runs on this node; else nil.
func (c *Caches) Pod(key string) *corev1.Pod {
	pod, _ := c.LocalPods.Get(key)
	return pod
}

// Claim returns the cached claim of that key that was created for a mover; nil if there is none. Only a coordinator
// caches the claims that other agents created.
func (c *Caches) Claim(key string) *corev1.PersistentVolumeClaim {
	claims := c.Claims
	if term := c.Coordinator(); term != nil {
		claims = term.Claims
	}
	claim, _ := claims.Get(key)
	return claim
}

// createdPods records the pods that this agent created until its cache has them. The API server answers a request
// before its event arrives; a reconcile in between would need a GET.
type createdPods struct {
	lock sync.Mutex
	pods map[string]*corev1.Pod // by key
}

// add records a pod as the API server returned it.
func (c *createdPods) add(pod *corev1.Pod) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.pods == nil {
		c.pods = map[string]*corev1.Pod{}
	}
	c.pods[Key(pod)] = pod
}

// get returns the recorded pod of that key, or nil. version is that of the cache's watch; once it is later than the
// pod's, the pod is dropped. A watch at the pod's own version has received the pod, so the cache follows soon. A
// version that cannot be compared belongs to a cache that was never listed.
func (c *createdPods) get(key, version string) *corev1.Pod {
	c.lock.Lock()
	defer c.lock.Unlock()
	pod := c.pods[key]
	if pod == nil {
		return nil
	}
	if version == pod.ResourceVersion || api.IsNewer(pod.ResourceVersion, version) {
		return pod
	}
	delete(c.pods, key)
	return nil
}

// drop drops a pod after an event of it.
func (c *createdPods) drop(pod *corev1.Pod) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if created := c.pods[Key(pod)]; created != nil && created.UID == pod.UID {
		delete(c.pods, Key(pod))
	}
}

// deletable is an object that can be copied.
type deletable[S any] interface {
	*S
	metav1.Object
	runtime.Object
	DeepCopy() *S
}

// deletions records what this agent deleted while the cache does not show it. The API server answers a request before
// its event arrives; a reconcile in between would delete twice.
type deletions[S any, T deletable[S]] struct {
	cached *Informer[T]

	lock sync.Mutex
	uids map[types.UID]bool
}

func newDeletions[S any, T deletable[S]](cached *Informer[T]) *deletions[S, T] {
	return &deletions[S, T]{cached: cached, uids: map[types.UID]bool{}}
}

// get returns the cached object, or nil. It sets the deletion timestamp if this agent deleted the object.
func (d *deletions[S, T]) get(key string) T {
	object, there := d.cached.Get(key)
	if !there {
		return nil
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	if !d.uids[object.GetUID()] {
		return object
	}
	var ending T = object.DeepCopy()
	ending.SetDeletionTimestamp(&metav1.Time{}) // the time does not matter
	return ending
}

// note records a deletion that the API server has accepted.
func (d *deletions[S, T]) note(key string, uid types.UID) {
	d.lock.Lock()
	d.uids[uid] = true
	d.lock.Unlock()
	d.drop(key, uid)
}

// drop forgets a deletion once the cache shows it.
func (d *deletions[S, T]) drop(key string, uid types.UID) {
	current, there := d.cached.Get(key)
	if there && current.GetUID() == uid && current.GetDeletionTimestamp() == nil {
		return
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	delete(d.uids, uid)
}
