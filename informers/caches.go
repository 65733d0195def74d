package informers

import (
	"context"
	"fmt"
	"sync"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Selection is what one agent needs to see of the cluster.
type Selection struct {
	Namespace   string // Velero's
	Node        string // the agent's
	MoverLabels string // selects the movers that this agent exposes, scheduled or not
}

// Caches are all informers of an agent, each with the smallest scope that serves:
//
//	PodVolumeBackups  Velero's namespace; those that are over are trimmed to name and phase
//	Here              the pods of this node in all namespaces: workloads and movers
//	Movers            Velero's namespace, by label: movers that may not be scheduled yet
type Caches struct {
	PodVolumeBackups *Informer[*velerov1.PodVolumeBackup]
	Here             *Informer[*corev1.Pod]
	Movers           *Informer[*corev1.Pod]
}

// NewCaches prepares the informers; Run starts them.
func NewCaches(kube kubernetes.Interface, velero *Velero, want Selection) (*Caches, error) {
	backups, err := New("podvolumebackups", velero.PodVolumeBackups(want.Namespace), &velerov1.PodVolumeBackup{}, Scope{}, trimBackup)
	if err != nil {
		return nil, err
	}
	onNode := fields.OneTermEqualSelector("spec.nodeName", want.Node).String()
	here, err := New("pods of this node", kube.CoreV1().Pods(metav1.NamespaceAll), &corev1.Pod{}, Scope{Fields: onNode}, trimPod)
	if err != nil {
		return nil, err
	}
	if _, err := labels.Parse(want.MoverLabels); err != nil {
		return nil, fmt.Errorf("parse selector of movers: %w", err)
	}
	movers, err := New("mover pods", kube.CoreV1().Pods(want.Namespace), &corev1.Pod{}, Scope{Labels: want.MoverLabels}, trimPod)
	if err != nil {
		return nil, err
	}
	return &Caches{PodVolumeBackups: backups, Here: here, Movers: movers}, nil
}

// Run watches until the context ends, and returns when every informer has stopped.
func (c *Caches) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, run := range []func(context.Context){c.PodVolumeBackups.run, c.Here.run, c.Movers.run} {
		running.Go(func() { run(ctx) })
	}
	running.Wait()
}

// Synced are done when the caches hold what the API server had at the start.
func (c *Caches) Synced() []cache.DoneChecker {
	return []cache.DoneChecker{c.PodVolumeBackups.synced(), c.Here.synced(), c.Movers.synced()}
}

// Mover is the pod of that key, from whichever cache has the newer one; nil if neither has it.
func (c *Caches) Mover(key string) *corev1.Pod {
	mover, isMover := c.Movers.Get(key)
	here, isHere := c.Here.Get(key)
	switch {
	case !isHere:
		return mover
	case !isMover || Newer(here, mover):
		return here
	default:
		return mover
	}
}

// Pod is the pod of that key if it runs on this node; nil if not.
func (c *Caches) Pod(key string) *corev1.Pod {
	pod, _ := c.Here.Get(key)
	return pod
}

// Newer tells whether a is a later version of the object than b. Versions of one resource can be
// compared since Kubernetes says so (KEP-5504); where they cannot, a is taken for the later one.
func Newer(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err != nil || order > 0
}
