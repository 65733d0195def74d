package reconcile

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
	"github.com/lateen-project/lateen/reconcile/writes"
)

// TransferReconciler reconciles the custom resources of one kind. All fields must be set.
type TransferReconciler[T transfer.Object] struct {
	Kind transfer.Kind[T]
	Dependencies

	Cached   func(key string) (T, bool)
	Client   Patcher[T]
	Enqueue  func(key string)
	OnUpdate func(object T, before, after transfer.State) // a phase: for metrics that only this kind has
	OnDelete func(object T)                               // a resource: likewise
	// Siblings are the unfinished restores to other volumes of the same pod.
	Siblings func(object T) []T

	local    localState
	written  writes.Overlay[T]
	starting sync.Mutex // while a restore to a pod is told to start
}

// Dependencies is what the kinds of an agent have in common. All fields must be set.
type Dependencies struct {
	Agent           transfer.Agent
	Limits          transfer.Limits
	ResourceTimeout time.Duration                             // what movers may take to open their repository
	NoConsumer      bool                                      // a restore does not wait for the first consumer of its target claim
	StorageClass    func(name string) *storagev1.StorageClass // cached by a coordinator; nil if there is none

	Pods      Pods
	Claims    Claims
	Targets   Targets
	LivePod   func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Exposer   *exposer.Exposer
	NodeSlots *capacity.NodeSlots
	Admission *capacity.Admission
	Movers    Movers
	Recorder  record.EventRecorder
	Metrics   *metrics.Metrics
	Clock     clock.PassiveClock
	MoverLog  func(ctx context.Context, mover string, text []byte)
}

// Patcher writes to the custom resources of one kind and namespace.
type Patcher[T any] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// Pods are the pods that an agent has in its caches; nil is a pod that they do not have.
type Pods interface {
	Mover(key string) *corev1.Pod // of the custom resource of that key
	Pod(key string) *corev1.Pod   // of this node
}

// Claims are the claims that were made for movers; nil is one that is not there.
type Claims interface {
	Claim(key string) *corev1.PersistentVolumeClaim
}

// Targets are the claims to which volumes are restored. Each is watched while it is followed.
type Targets interface {
	Watch(uid types.UID, claim types.NamespacedName, enqueue func())
	Forget(uid types.UID)
	Claim(uid types.UID) (claim *corev1.PersistentVolumeClaim, known bool)
}

// Movers are what movers say while they work.
type Movers interface {
	Watch(uid types.UID, enqueue func())
	Forget(uid types.UID)
	Last(uid types.UID, reason string, mover *corev1.Pod) (message string, at time.Time, ok bool)
}

// request is one resource as it is looked at: a value for one step.
type request[T transfer.Object] struct {
	key    string
	object T
	state  transfer.State
	move   objects.MoverSpec
	pod    *corev1.Pod                     // its mover, if there is one
	claims []*corev1.PersistentVolumeClaim // what was made for it, if only the API server has it
	late   bool                            // only the API server has what was made for it: no event will tell of its end
	seen   transfer.Observed
}

// conflictRequeue is when a resource is looked at whose write was refused, in case that nothing of it is heard: a 409
// need not mean that somebody has written.
const conflictRequeue = time.Second

// Reconcile takes one step for the resource of that key.
func (t *TransferReconciler[T]) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	cached, exists := t.Cached(key)
	if !exists {
		t.forget(key)
		return 0, nil
	}
	if t.written.IsRecreated(key, cached.GetUID()) {
		t.forget(key)
	}
	s := t.newRequest(key, t.written.Newest(key, cached))
	if err := t.observe(ctx, s); err != nil {
		return 0, err
	}
	requeue, err := t.execute(ctx, s, transfer.Next(s.state, s.seen, t.Limits))
	if errors.Is(err, errConflict) {
		klog.FromContext(ctx).V(4).Info("Somebody else was faster; their event is on its way")
		return conflictRequeue, nil
	}
	if s.late {
		return conflictRequeue, err
	}
	return requeue, err
}

// execute does what a step asks for.
func (t *TransferReconciler[T]) execute(ctx context.Context, s *request[T], step transfer.Step) (time.Duration, error) {
	switch step.Action {
	case transfer.Write:
		return 0, t.write(ctx, s, step)
	case transfer.Expose:
		return step.After, t.expose(ctx, s)
	case transfer.Rebind:
		return step.After, t.rebind(ctx, s, false)
	case transfer.AbandonRebind:
		return 0, t.rebind(ctx, s, true)
	case transfer.Remove:
		requeue, err := t.remove(ctx, s, step.Reason, step.Force)
		return cmp.Or(requeue, step.After), err
	case transfer.Wait:
	}
	return step.After, nil
}

func (t *TransferReconciler[T]) newRequest(key string, object T) *request[T] {
	return &request[T]{key: key, object: object, state: t.Kind.Get(object), move: t.movement(object)}
}

// movement is what the resource asks for, from this agent.
func (t *TransferReconciler[T]) movement(object T) objects.MoverSpec {
	move := t.Kind.Movement(object, t.ResourceTimeout)
	move.GVK, move.PodLabel = t.Kind.GVK, t.Kind.PodLabel
	move.Attempt, move.ExposingNode = t.Kind.Get(object).Restarts, t.Agent.Node
	return move
}

// Owned are those of the resources that belong to the node of this agent from the start.
func (t *TransferReconciler[T]) Owned(objects []T) []T {
	return slices.DeleteFunc(objects, func(object T) bool { return t.Kind.Get(object).Node != t.Agent.Node })
}

// Resume gives slots to the movers that work already. It comes before the first step.
func (t *TransferReconciler[T]) Resume(owned []T) {
	for _, object := range owned {
		if state := t.Kind.Get(object); state.TakesSlot() {
			t.written.Newest(cache.MetaObjectToName(object).String(), object) // or nobody would release it once it is gone
			t.NodeSlots.ForceAcquire(state.Node, object.GetUID())
		}
	}
}

// Observe tells admission of a resource, wherever it belongs, and counts the slots of other nodes: whoever comes to stand in for
// an agent there knows from the beginning how many movers work.
func (t *TransferReconciler[T]) Observe(object T) {
	state := t.Kind.Get(object)
	switch uid := object.GetUID(); {
	case state.Node == t.Agent.Node || state.Phase == transfer.Prepared:
	case state.TakesSlot():
		t.NodeSlots.ForceAcquire(state.Node, uid)
	default:
		t.NodeSlots.Release(uid)
	}
	entry := capacity.Entry{
		UID: object.GetUID(), Key: t.Kind.Name + "/" + cache.MetaObjectToName(object).String(), Version: object.GetResourceVersion(),
		Created: state.CreatedAt, Restore: t.Kind.Restores, Phase: capacity.Uncounted,
	}
	switch {
	case state.Foreign:
	case state.Phase == transfer.Accepted || state.Phase == transfer.Prepared:
		entry.Phase = capacity.Admitted
	case (state.Phase == "" || state.Phase == transfer.New) && !state.Cancel && !state.Deleting && state.UnsupportedReason == "":
		entry.Phase = capacity.Waiting
	}
	if state.NodeBound {
		entry.Node = state.Node
	}
	t.Admission.Observe(entry)
}

// syncSlots keeps slots and conversations in line with the phase: both follow from it, so nothing can
// leak them.
func (t *TransferReconciler[T]) syncSlots(s *request[T]) {
	uid := s.object.GetUID()
	takes := s.state.TakesSlot()
	if takes {
		t.NodeSlots.ForceAcquire(s.state.Node, uid)
	}
	if takes && s.seen.OwnsMover {
		t.Movers.Watch(uid, func() { t.Enqueue(s.key) })
		return
	}
	t.Movers.Forget(uid)
	if s.state.Phase.Terminal() {
		t.Targets.Forget(uid)
	}
	if !takes && (!s.seen.OwnsMover || s.state.Phase != transfer.Prepared) {
		t.NodeSlots.Release(uid)
	}
}

// forget drops what is remembered of a resource that is gone.
func (t *TransferReconciler[T]) forget(key string) {
	t.local.forget(key)
	deleted, known := t.written.Forget(key)
	if !known {
		return
	}
	uid := deleted.GetUID()
	t.Movers.Forget(uid)
	t.Targets.Forget(uid)
	t.NodeSlots.Release(uid)
	t.Admission.Forget(uid)
	t.OnDelete(deleted)
}
