package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/reconcile/transfer"
	"github.com/lateen-project/lateen/reconcile/writes"
)

// errConflict means that another client changed the resource since it was read.
var errConflict = errors.New("another client changed the object first")

// write patches the custom resource to the state of the step. The patch fails if the resource changed since it was
// read.
func (t *TransferReconciler[T]) write(ctx context.Context, s *request[T], step transfer.Step) error {
	starts := step.State.Phase.IsMoving() && !s.state.Phase.IsMoving()
	uid := s.object.GetUID()
	if starts && t.sharesPod(s) {
		pod := s.move.Source.PodVolume.Pod
		key := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		if _, busy := t.starting.LoadOrStore(key, true); busy {
			return errConflict
		}
		defer t.starting.Delete(key)
		if t.isBesideAnother(s) {
			return nil // the end of the other restore enqueues this one
		}
	}
	if starts && !t.NodeSlots.TryAcquire(s.state.Node, uid, s.state.CreatedAt, func() { t.Enqueue(s.key) }) {
		return nil // another worker took the slot; the queue enqueues this one
	}
	if starts {
		t.Movers.WatchNext(ctx, uid, func() { t.Enqueue(s.key) }) // reserve closes it if the write fails
	}
	changed := t.Kind.Copy(s.object)
	t.Kind.Set(changed, step.State)
	if step.State.Phase.HasFailed() && !s.state.Phase.HasFailed() {
		transfer.SetFailure(changed, step.Reason)
	}
	patch, err := writes.MergePatch(s.object, changed)
	if err != nil {
		return fmt.Errorf("create patch of %s: %w", s.key, err)
	}
	written, err := t.Client.Patch(ctx, s.object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: writes.FieldManager})
	if err != nil {
		if apierrors.IsConflict(err) {
			return errConflict // perhaps this agent's own write, with its answer lost: keep what it reserved
		}
		if isRejected(err) {
			t.notWritten(s, starts)
		}
		if apierrors.IsNotFound(err) {
			return nil // the delete event is on its way
		}
		return fmt.Errorf("write %s to %s: %w", step.Reason, s.key, err)
	}
	t.written.Record(s.key, written)
	t.TrackCapacity(written)
	after := t.Kind.Get(written)
	if !after.TakesSlot() && !after.Phase.NeedsSlot() {
		t.NodeSlots.Release(uid)
	}
	t.report(ctx, s.key, written, s.state, after, step)
	return nil
}

// notWritten releases what was reserved for a write that did not happen.
func (t *TransferReconciler[T]) notWritten(s *request[T], starts bool) {
	if starts {
		t.NodeSlots.Release(s.object.GetUID())
	}
	t.Admission.Release(s.object.GetUID())
	t.Preparing.Release(s.object.GetUID())
}

// expose creates the missing objects, the mover pod last. A terminal error fails the transfer at once.
func (t *TransferReconciler[T]) expose(ctx context.Context, s *request[T]) error {
	waits, err := t.Exposer.Ensure(ctx, s.move)
	if terminal := (*exposer.TerminalError)(nil); errors.As(err, &terminal) {
		return t.write(ctx, s, transfer.FailExpose(s.state, s.observed, terminal.Error()))
	}
	t.reportRefusal(s, EventCreateFailed, err)
	t.local.exposed(s.key, s.state.Restarts, waits, err)
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Exposed", "waitsFor", waits)
	}
	return err
}

// rebind binds the restored volume to its target claim. It saves the mover's log before it deletes the pod. The cache
// claim of the mover stays until the clean-up. It sends no request while an event is still due.
func (t *TransferReconciler[T]) rebind(ctx context.Context, s *request[T]) error {
	t.local.update(s.key, func(kept *entry) { kept.rebinds = cmp.Or(kept.rebinds, s.observed.Now) })
	if _, known := t.moverClaim(s); !known {
		return nil // its watch enqueues this resource
	}
	found := t.found(s)
	found.Claims = slices.DeleteFunc(found.Claims, func(claim *corev1.PersistentVolumeClaim) bool { return claim.Name != s.move.Name })
	if t.local.isDeleting(s.key, found) || deleting(found) || t.binds(s) {
		return nil // an event reports the end of this
	}
	t.keepLog(ctx, s)
	rebound, err := t.Exposer.Rebind(ctx, s.move, found)
	if terminal := (*exposer.TerminalError)(nil); errors.As(err, &terminal) {
		return t.abandonRebind(ctx, s, terminal.Error())
	}
	t.local.setBlocker(s.key, rebound.Waits, err)
	switch {
	case err != nil:
		return err
	case rebound.Done:
		t.local.update(s.key, func(kept *entry) { kept.rebound = true })
		t.Enqueue(s.key)
		return nil
	}
	t.local.rebinds(s.key, found, rebound.Reserved)
	klog.FromContext(ctx).V(2).Info("Rebind is waiting", "waitsFor", rebound.Waits)
	return nil
}

// deleting reports whether a deleting mover pod is all that is left of the restore.
func deleting(found exposer.Existing) bool {
	return found.Pod != nil && found.Pod.DeletionTimestamp != nil && len(found.Claims) == 0
}

// binds reports whether Kubernetes has yet to bind the target claim for which the volume is reserved. The cached claim may
// lack the name of its volume, which the reservation wrote.
func (t *TransferReconciler[T]) binds(s *request[T]) bool {
	claim, _ := t.Targets.Claim(s.object.GetUID())
	return claim != nil && claim.UID == t.local.read(s.key).reserved && claim.DeletionTimestamp == nil && claim.Status.Phase == corev1.ClaimPending
}

// abandonRebind ends a rebind: the target is bound after all, or the transfer fails.
func (t *TransferReconciler[T]) abandonRebind(ctx context.Context, s *request[T], why string) error {
	bound, message, err := t.Exposer.AbandonRebind(ctx, s.move, t.found(s))
	if err != nil {
		return err
	}
	if bound {
		return t.write(ctx, s, transfer.CompleteRebind(s.state, s.observed, message))
	}
	t.keepLog(ctx, s)
	return t.write(ctx, s, transfer.FailRebind(s.state, s.observed, joinNonEmpty(why, t.local.read(s.key).blocker, message)))
}

// deleteMover deletes the mover pod. It saves the log of a finished mover first.
func (t *TransferReconciler[T]) deleteMover(ctx context.Context, s *request[T], step transfer.Step) error {
	if step.Loss != (transfer.Loss{}) {
		t.local.markLost(s.key, s.state.Restarts, step.Loss)
	}
	found := t.local.toRemove(s.key, exposer.Existing{Pod: s.pod, Force: step.Force})
	if found.Pod == nil {
		return nil // already deleting
	}
	t.keepLog(ctx, s)
	klog.FromContext(ctx).V(2).Info("Deleting mover pod", "reason", step.Reason, "force", step.Force)
	if err := t.Exposer.DeleteMover(ctx, found); err != nil {
		t.reportRefusal(s, EventCleanUpWaits, err)
		return err
	}
	t.local.markDeleted(s.key, found, !s.cachesLag)
	return nil
}

// cleanUp deletes everything that was exposed. It saves the log of a finished mover first. It returns the delay until
// the warning of a clean-up that still waits; 0 is none.
func (t *TransferReconciler[T]) cleanUp(ctx context.Context, s *request[T], force bool) (time.Duration, error) {
	found := t.found(s)
	found.Force = force
	found = t.local.toRemove(s.key, found)
	known := t.local.read(s.key)
	snapshots := s.move.Source.Snapshot != nil && !known.clean
	found.HandedOver = known.created > 0 // the snapshot is handed over before a mover is created
	if found.Pod == nil && len(found.Claims) == 0 && !snapshots {
		return 0, nil // already deleting
	}
	t.keepLog(ctx, s)
	klog.FromContext(ctx).V(2).Info("Deleting exposed objects", "force", force, "mover", found.Pod != nil, "claims", len(found.Claims), "snapshots", snapshots)
	waits, err := t.Exposer.CleanUp(ctx, s.move, found)
	if err != nil {
		t.reportRefusal(s, EventCleanUpWaits, err)
		return 0, err
	}
	t.local.markDeleted(s.key, found, !s.cachesLag)
	switch {
	case !snapshots:
	case waits != "":
		return t.cleanUpWaits(ctx, s, waits), nil
	default:
		t.local.update(s.key, func(kept *entry) { kept.clean = true })
		t.Enqueue(s.key)
	}
	return 0, nil
}

// cleanUpWaits sends one Event if a clean-up waits longer than CleanUpWarning. Only a person can fix a CSI driver
// that does not delete a snapshot. It returns the delay until the warning; 0 once it is due.
func (t *TransferReconciler[T]) cleanUpWaits(ctx context.Context, s *request[T], waits string) time.Duration {
	if left := s.state.CompletedAt.Add(t.Limits.CleanUpWarning).Sub(s.observed.Now); left > 0 {
		return left
	}
	if t.local.toReport(s.key) {
		klog.FromContext(ctx).Info("Clean-up is waiting", "waitsFor", waits)
		t.event(s.move, corev1.EventTypeWarning, EventCleanUpWaits, "Snapshot is not deleted yet: "+waits)
	}
	return 0
}
