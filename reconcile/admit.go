package reconcile

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Owned returns the resources whose status names the node of this agent. It modifies the given slice.
func (t *TransferReconciler[T]) Owned(objects []T) []T {
	return slices.DeleteFunc(objects, func(object T) bool { return t.Kind.Get(object).Node != t.Agent.Node })
}

// Resume acquires slots for the movers that run already. Call it before the first reconcile.
func (t *TransferReconciler[T]) Resume(owned []T) {
	for _, object := range owned {
		if state := t.Kind.Get(object); state.TakesSlot() {
			t.written.Newest(cache.MetaObjectToName(object).String(), object) // forget needs it to release the slot
			t.NodeSlots.ForceAcquire(state.Node, object.GetUID())
		}
	}
}

// TrackCapacity passes a resource of any node to admission, and counts the prepared ones. It also counts the slots in use on
// other nodes. A coordinator that stands in for the agent of such a node needs that count from its start.
func (t *TransferReconciler[T]) TrackCapacity(object T) {
	state := t.Kind.Get(object)
	switch uid := object.GetUID(); {
	case t.written.IsStale(cache.MetaObjectToName(object).String(), object): // its reconcile counts it
	case state.Node == t.Agent.Node || state.Phase.NeedsSlot():
	case state.TakesSlot():
		t.NodeSlots.ForceAcquire(state.Node, uid)
	default:
		t.NodeSlots.Release(uid)
	}
	t.countPrepared(object, state)
	entry := capacity.Entry{
		UID: object.GetUID(), Key: t.Kind.Name + "/" + cache.MetaObjectToName(object).String(), Version: object.GetResourceVersion(),
		Created: state.CreatedAt, Restore: t.Kind.Restores, Phase: capacity.Uncounted,
	}
	switch {
	case state.Foreign:
	case state.Phase.IsPreparing():
		entry.Phase = capacity.Admitted
	case state.Phase.IsNew() && !state.Cancel && !state.Deleting && state.UnsupportedReason == "":
		entry.Phase = capacity.Waiting
	}
	if state.NodeBound {
		entry.Node = state.Node
	}
	t.Admission.Observe(entry)
}

// countPrepared counts a transfer that Lateen prepares. A new one keeps its place: it is about to be accepted, or it is
// queued for that. An accepted one gives its place to the next after a while, as something of its own may keep its mover
// from running; countPrepared returns how long that is from now, or 0.
func (t *TransferReconciler[T]) countPrepared(object T, state transfer.State) (left time.Duration) {
	uid, ours := object.GetUID(), !state.Foreign && state.Exposer != ""
	if state.Phase.NeedsMover() {
		left = max(state.AcceptedAt.Add(t.Limits.PlaceTimeout).Sub(t.Clock.Now()), 0)
	}
	switch {
	case state.Phase.IsNew():
	case state.NodeBound && state.Node != t.Agent.Node:
	case ours && left > 0:
		t.Preparing.Count(state.NodeBound, uid)
	case ours && state.Phase.NeedsSlot():
		t.Preparing.CountReady(state.NodeBound, state.Node, uid, state.CreatedAt, func() { t.Enqueue(cache.MetaObjectToName(object).String()) })
	default:
		t.Preparing.Release(uid)
	}
	return left
}

// ReleaseCapacity releases what a deleted resource holds.
func (t *TransferReconciler[T]) ReleaseCapacity(uid types.UID) {
	t.NodeSlots.Release(uid)
	t.Admission.Forget(uid)
	t.Preparing.Release(uid)
}

// forget drops the local state of a deleted resource and releases its slot.
func (t *TransferReconciler[T]) forget(key string) {
	t.local.forget(key)
	deleted, known := t.written.Forget(key)
	if !known {
		return
	}
	uid := deleted.GetUID()
	t.Movers.Forget(uid)
	t.Targets.Forget(uid)
	t.Restored.Forget(uid)
	t.TargetPods.Forget(uid)
	t.ReleaseCapacity(uid)
}
