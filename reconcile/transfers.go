package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/build"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Transfers reconciles the custom resources of one kind. All fields must be set.
type Transfers[T transfer.Object] struct {
	Kind            transfer.Kind[T]
	Node            string // of this agent
	Limits          transfer.Limits
	ResourceTimeout time.Duration // what movers may take to open their repository
	Privileged      bool          // movers of pod volumes run privileged

	Cached   func(key string) (T, bool)
	Client   Patcher[T]
	Pods     Pods
	LivePod  func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Exposer  *exposer.Exposer
	Paths    exposer.HostPaths
	Slots    *Slots
	Movers   Movers
	Wake     func(key string)
	Recorder record.EventRecorder
	Metrics  *metrics.Metrics
	Clock    clock.PassiveClock
	MoverLog func(ctx context.Context, mover string, text []byte)
	Changed  func(object T, before, after transfer.State) // a phase: for metrics that only this kind has
	Gone     func(object T)                               // a resource: likewise

	memory memory[T]
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

// Movers are what movers say while they work.
type Movers interface {
	Follow(uid types.UID, wake func())
	Forget(uid types.UID)
	Last(uid types.UID, reason string) (message string, at time.Time, ok bool)
}

// What movers say (velero-protocol 3.3).
const (
	saidStarted  = "Data-Path-Started"
	saidProgress = "Data-Path-Progress"
)

// Reconcile takes one step for the resource of that key.
func (t *Transfers[T]) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	cached, exists := t.Cached(key)
	if !exists {
		t.forget(key)
		return 0, nil
	}
	object := t.memory.newest(key, cached)
	state := t.Kind.Get(object)
	t.account(key, object, state)
	seen, err := t.look(ctx, key, object, state)
	if err != nil {
		return 0, err
	}
	step := transfer.Next(state, seen, t.Limits)
	switch step.Action {
	case transfer.Write:
		return 0, t.write(ctx, key, object, step)
	case transfer.Expose:
		return step.After, t.expose(ctx, key, object, seen)
	case transfer.Remove:
		return 0, t.remove(ctx, key, object, state, step.Reason)
	case transfer.Wait:
	}
	return step.After, nil
}

// Owned are those of the resources on which this agent acts.
func (t *Transfers[T]) Owned(objects []T) []T {
	return slices.DeleteFunc(objects, func(object T) bool { return !t.owns(t.Kind.Get(object)) })
}

// Resume gives slots to the movers that work already. It comes before the first step.
func (t *Transfers[T]) Resume(owned []T) {
	for _, object := range owned {
		if t.Kind.Get(object).Phase.TakesSlot() {
			t.Slots.Hold(object.GetUID(), cache.MetaObjectToName(object).String())
		}
	}
}

// owns tells whether this agent is the one that acts.
func (t *Transfers[T]) owns(state transfer.State) bool { return state.Node == t.Node }

// account keeps slots and conversations in line with the phase: both follow from it, so nothing can
// leak them.
func (t *Transfers[T]) account(key string, object T, state transfer.State) {
	uid := object.GetUID()
	if t.owns(state) && state.Phase.TakesSlot() {
		t.Slots.Hold(uid, key)
		t.Movers.Follow(uid, func() { t.Wake(key) })
		return
	}
	t.Movers.Forget(uid)
	if !t.owns(state) || state.Phase != transfer.Prepared {
		t.Slots.Release(uid)
	}
}

// forget drops what is remembered of a resource that is gone.
func (t *Transfers[T]) forget(key string) {
	if gone, known := t.memory.forget(key); known {
		t.Movers.Forget(gone.GetUID())
		t.Gone(gone)
	}
	t.Slots.ReleaseKey(key)
}

// look gathers what there is to know. It reads caches, and asks the API server only where a pod that
// is missing in them would have consequences: see surely and source.
func (t *Transfers[T]) look(ctx context.Context, key string, object T, state transfer.State) (transfer.Seen, error) {
	owned := t.owns(state)
	seen := transfer.Seen{
		Now: t.Clock.Now(), Here: t.Node,
		Mine: owned, Follow: owned, Eligible: true, Room: true,
		ExposeErr: t.memory.exposeError(key),
	}
	if !owned {
		return seen, nil
	}
	pod, err := t.surely(ctx, key, object, state)
	if err != nil {
		return seen, err
	}
	seen.Exposure = build.ReadPod(pod)
	if pod == nil && t.exposed(key, state) {
		seen.Exposure = build.Vanished(state.Restarts)
	}
	if state.Cancel || state.Deleting {
		seen.CanceledAt = t.memory.canceled(key, seen.Now)
	}
	if state.Phase == transfer.Prepared && seen.Exposure.Condition == build.Running {
		seen.Slot = t.Slots.Queue(object.GetUID(), key, state.CreatedAt, func() { t.Wake(key) })
	}
	t.listen(object, state, &seen)
	t.readResult(&seen)
	if !state.Phase.NeedsSource() {
		return seen, nil
	}
	source, err := t.source(ctx, object)
	seen.SourceGone = err == nil && source == nil
	return seen, err
}

// mover is the pod that belongs to this very resource: names are used again, UIDs are not.
func (t *Transfers[T]) mover(key string, object T) *corev1.Pod {
	if pod := t.Pods.Mover(key); pod != nil && build.OwnedBy(pod, object.GetUID()) {
		return pod
	}
	return nil
}

// surely is mover, made sure of where its absence would replace it: caches do not keep step, and another
// agent of this node, on its way out, may have made it.
func (t *Transfers[T]) surely(ctx context.Context, key string, object T, state transfer.State) (*corev1.Pod, error) {
	pod := t.mover(key, object)
	current := pod != nil && build.ReadPod(pod).Attempt == state.Restarts
	if current || !state.Phase.HasMover() && !t.exposed(key, state) {
		return pod, nil
	}
	pod, err := t.LivePod(ctx, object.GetNamespace(), object.GetName())
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get mover pod of %s: %w", key, err)
	case !build.OwnedBy(pod, object.GetUID()):
		return nil, nil
	}
	return pod, nil
}

// exposed tells whether a mover that was not seen to run yet has been made, so that one that is deleted
// again and again is not made again for ever.
func (t *Transfers[T]) exposed(key string, state transfer.State) bool {
	return state.Phase == transfer.Accepted && t.memory.exposedIn(key, state.Restarts)
}

func (t *Transfers[T]) listen(object T, state transfer.State, seen *transfer.Seen) {
	if _, at, ok := t.Movers.Last(object.GetUID(), saidStarted); ok {
		seen.Started = !at.Before(state.StartedAt)
	}
	if message, at, ok := t.Movers.Last(object.GetUID(), saidProgress); ok {
		if progress, err := transfer.ReadProgress(message); err == nil {
			seen.Progress, seen.ProgressAt = progress, at
		}
	}
}

func (t *Transfers[T]) readResult(seen *transfer.Seen) {
	if seen.Exposure.Condition != build.Succeeded {
		return
	}
	result, err := t.Kind.Result(seen.Exposure.Message)
	if err != nil {
		seen.Unreadable = err.Error()
		return
	}
	seen.Result = &result
}

// source is the pod whose volume is moved, nil if it is gone. The caches of pods and of custom
// resources do not keep step, and the answer may be final, so a pod that is not cached is asked for.
func (t *Transfers[T]) source(ctx context.Context, object T) (*corev1.Pod, error) {
	reference, _ := t.Kind.Source(object)
	if pod := t.Pods.Pod(reference.Namespace + "/" + reference.Name); isSource(pod, reference) {
		return pod, nil
	}
	pod, err := t.LivePod(ctx, reference.Namespace, reference.Name)
	if apierrors.IsNotFound(err) || err == nil && !isSource(pod, reference) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get source pod %s/%s: %w", reference.Namespace, reference.Name, err)
	}
	return pod, nil
}

func isSource(pod *corev1.Pod, reference corev1.ObjectReference) bool {
	return pod != nil && (reference.UID == "" || pod.UID == reference.UID)
}
