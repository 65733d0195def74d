package informers

import (
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/exposer/api"
)

// Caches holds all informers of an agent, each with the smallest sufficient scope:
//
//	Transfers   Velero's namespace, by label: those of this node; all while this agent coordinates. Not those labelled as
//	            done, and terminal ones are trimmed to a few fields
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

	namespace   string                            // of Velero
	coordinator atomic.Pointer[CoordinatorCaches] // nil while this agent does not coordinate
}

// NewCaches returns the informers of the agent of a node, for the Velero in a namespace; Run starts them.
func NewCaches(kube kubernetes.Interface, velero *Clientset, namespace, node string) (*Caches, error) {
	b := group{}
	onNode := Scope{Fields: fields.OneTermEqualSelector("spec.nodeName", node).String()}
	created := Scope{Labels: api.LabelExposer + "=" + api.LabelValue(node)}
	c := &Caches{
		namespace: namespace,
		Transfers: newTransfers(&b, velero, namespace, labels.Set{api.LabelNode: api.LabelValue(node)}),
		LocalPods: add(&b, "pods of this node", kube.CoreV1().Pods(metav1.NamespaceAll), &corev1.Pod{}, onNode, trimPod),
		Movers:    add(&b, "mover pods", kube.CoreV1().Pods(namespace), &corev1.Pod{}, created, trimPod),
		Claims:    add(&b, "claims of movers", kube.CoreV1().PersistentVolumeClaims(namespace), &corev1.PersistentVolumeClaim{}, created, noTrim[*corev1.PersistentVolumeClaim]),
	}
	if b.err != nil {
		return nil, b.err
	}
	c.group = b
	return c, c.index()
}

// DropCreated drops the record of a created pod in Movers before it calls the handler. Once one cache has had the pod, a
// reconcile that its deletion triggers does not find the record, although Movers may lag.
func (c *Caches) DropCreated(handle func(*corev1.Pod)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		c.Movers.drop(pod)
		handle(pod)
	}
}

// Mover returns the newest version of the pod of that key in any cache; nil if there is none.
func (c *Caches) Mover(key string) *corev1.Pod {
	caches := []*Informer[*corev1.Pod]{c.LocalPods, c.Movers}
	if term := c.Coordinator(); term != nil {
		caches = append(append(caches, term.Movers), term.VelerosMovers...)
	}
	var newest *corev1.Pod
	for _, pods := range caches {
		if pod, ok := pods.Get(key); ok && (newest == nil || api.IsNewer(pod.ResourceVersion, newest.ResourceVersion)) {
			newest = pod
		}
	}
	return newest
}

// Recorded reports whether this agent created the mover of that key, and no cache has had it yet.
func (c *Caches) Recorded(key string) bool { return c.Movers.recorded(key) }

// Pod returns the pod of that key if it runs on this node or, on a coordinator, waits for a restore; else nil.
func (c *Caches) Pod(key string) *corev1.Pod {
	pod, _ := c.LocalPods.Get(key)
	if term := c.Coordinator(); pod == nil && term != nil {
		pod, _ = term.Targets.Get(key)
	}
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
