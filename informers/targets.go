package informers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// Targets watches the target claims of restores: one watch on one claim for each restore that waits for it. An agent
// does not cache all claims of a cluster.
type Targets struct {
	*singles[types.UID, *corev1.PersistentVolumeClaim]
}

// NewTargets watches claims until the context ends.
func NewTargets(ctx context.Context, client kubernetes.Interface) *Targets {
	return &Targets{newSingles[types.UID](ctx, func(namespace string, one Scope) (*Informer[*corev1.PersistentVolumeClaim], error) {
		return New("target claim", client.CoreV1().PersistentVolumeClaims(namespace), &corev1.PersistentVolumeClaim{}, one, noTrim[*corev1.PersistentVolumeClaim])
	})}
}

// Claim returns the target claim of a resource, or nil if it does not exist; known is false until the watch has
// synced.
func (t *Targets) Claim(uid types.UID) (claim *corev1.PersistentVolumeClaim, known bool) {
	return t.get(uid)
}

// ClassChanged enqueues the resources whose target claim has that storage class.
func (t *Targets) ClassChanged(name string) {
	t.lock.Lock()
	defer t.lock.Unlock()
	for _, followed := range t.followed {
		if claim, ok := followed.objects.Get(followed.key); ok && ptr.Deref(claim.Spec.StorageClassName, "") == name {
			followed.enqueue()
		}
	}
}

// TargetPods watches the target pods of restores that no agent owns: one watch on one pod for each restore.
type TargetPods struct {
	*singles[types.UID, *corev1.Pod]
}

// NewTargetPods watches pods until the context ends.
func NewTargetPods(ctx context.Context, client kubernetes.Interface) *TargetPods {
	return &TargetPods{newSingles[types.UID](ctx, func(namespace string, one Scope) (*Informer[*corev1.Pod], error) {
		return New("target pod", client.CoreV1().Pods(namespace), &corev1.Pod{}, one, trimPod)
	})}
}

// Pod returns the target pod of a resource, or nil if it does not exist; known is false until the watch has synced.
func (t *TargetPods) Pod(uid types.UID) (pod *corev1.Pod, known bool) { return t.get(uid) }
