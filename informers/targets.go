package informers

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// Targets watches the target claims of restores: one watch on one claim for each restore that waits for it. An agent
// does not cache all claims of a cluster.
type Targets struct {
	ctx    context.Context // ends all watches
	client kubernetes.Interface

	lock     sync.Mutex
	followed map[types.UID]*target
	watches  sync.WaitGroup
}

type target struct {
	stop    context.CancelFunc
	key     string
	claims  *Informer[*corev1.PersistentVolumeClaim]
	enqueue func()
}

// NewTargets watches claims until the context ends.
func NewTargets(ctx context.Context, client kubernetes.Interface) *Targets {
	return &Targets{ctx: ctx, client: client, followed: map[types.UID]*target{}}
}

// Watch opens the watch for a resource, once. It calls enqueue when it is known whether the claim exists, and at each
// of its changes.
func (t *Targets) Watch(uid types.UID, claim types.NamespacedName, enqueue func()) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if t.followed[uid] != nil || t.ctx.Err() != nil {
		return
	}
	one := fields.OneTermEqualSelector(metav1.ObjectNameField, claim.Name).String()
	claims, err := New("target claim", t.client.CoreV1().PersistentVolumeClaims(claim.Namespace), &corev1.PersistentVolumeClaim{}, Scope{Fields: one},
		func(*corev1.PersistentVolumeClaim) {})
	if err == nil {
		_, err = claims.AddHandler(func(*corev1.PersistentVolumeClaim) { enqueue() })
	}
	if err != nil {
		klog.FromContext(t.ctx).Error(err, "Follow target claim", "claim", claim)
		return
	}
	ctx, stop := context.WithCancel(t.ctx)
	t.followed[uid] = &target{stop: stop, key: claim.String(), claims: claims, enqueue: enqueue}
	t.watches.Go(func() { claims.run(ctx) })
	t.watches.Go(func() { // a claim that does not exist sends no event
		select {
		case <-claims.synced().Done():
			enqueue()
		case <-ctx.Done():
		}
	})
}

// Forget closes the watch of a resource.
func (t *Targets) Forget(uid types.UID) {
	t.lock.Lock()
	defer t.lock.Unlock()
	if followed := t.followed[uid]; followed != nil {
		followed.stop()
		delete(t.followed, uid)
	}
}

// Claim returns the target claim of a resource, or nil if it does not exist; known is false until the watch has
// synced.
func (t *Targets) Claim(uid types.UID) (claim *corev1.PersistentVolumeClaim, known bool) {
	followed := t.of(uid)
	if followed == nil || !followed.claims.shared.HasSynced() {
		return nil, false
	}
	claim, _ = followed.claims.Get(followed.key)
	return claim, true
}

// ClassChanged enqueues the resources whose target claim has that storage class.
func (t *Targets) ClassChanged(name string) {
	t.lock.Lock()
	defer t.lock.Unlock()
	for _, followed := range t.followed {
		if claim, ok := followed.claims.Get(followed.key); ok && ptr.Deref(claim.Spec.StorageClassName, "") == name {
			followed.enqueue()
		}
	}
}

func (t *Targets) of(uid types.UID) *target {
	t.lock.Lock()
	defer t.lock.Unlock()
	return t.followed[uid]
}

// Wait returns when every watch is closed, after the context has ended.
func (t *Targets) Wait() { t.watches.Wait() }
