package reconcile

import (
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
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/transfer"
	"github.com/lateen-project/lateen/reconcile/writes"
)

// errConflict says that a resource was changed by somebody since it was read.
var errConflict = errors.New("somebody else was faster")

// write changes the custom resource as the step says, if nobody has changed it since it was read.
func (t *TransferReconciler[T]) write(ctx context.Context, s *request[T], step transfer.Step) error {
	starts := step.State.Phase == transfer.InProgress && s.state.Phase != transfer.InProgress
	uid := s.object.GetUID()
	if starts && t.sharesPod(s) {
		t.starting.Lock()
		defer t.starting.Unlock()
		if t.isBesideAnother(s) {
			return nil // its end wakes this one
		}
	}
	if starts && !t.NodeSlots.TryAcquire(s.state.Node, uid, s.state.CreatedAt, func() { t.Enqueue(s.key) }) {
		return nil // another worker was faster; the line wakes this one
	}
	changed := t.Kind.Copy(s.object)
	t.Kind.Set(changed, step.State)
	patch, err := writes.MergePatch(s.object, changed)
	if err != nil {
		return fmt.Errorf("make patch of %s: %w", s.key, err)
	}
	written, err := t.Client.Patch(ctx, s.object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: writes.FieldManager})
	if err != nil {
		if apierrors.IsConflict(err) {
			return errConflict // this agent perhaps, by a write whose answer was lost: what it reserved stays so
		}
		if isRejected(err) {
			t.notWritten(s, starts)
		}
		if apierrors.IsNotFound(err) {
			return nil // the event that says so is on its way
		}
		return fmt.Errorf("write %s to %s: %w", step.Reason, s.key, err)
	}
	t.written.Record(s.key, written)
	t.Observe(written)
	after := t.Kind.Get(written)
	if !after.TakesSlot() && after.Phase != transfer.Prepared {
		t.NodeSlots.Release(uid)
	}
	t.report(ctx, s.key, written, s.state, after, step)
	return nil
}

// notWritten gives back what was reserved for a write that did not happen.
func (t *TransferReconciler[T]) notWritten(s *request[T], starts bool) {
	if starts {
		t.NodeSlots.Release(s.object.GetUID())
	}
	t.Admission.Release(s.object.GetUID())
}

// isRejected tells whether an error says that the write did not happen; without an answer from the API
// server, or with a 5xx, it may have.
func isRejected(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500
}

// expose makes the mover, or what it still lacks. What can never be made ends the transfer at once.
func (t *TransferReconciler[T]) expose(ctx context.Context, s *request[T]) error {
	waits, err := t.Exposer.Ensure(ctx, s.move)
	if terminal := (*exposer.TerminalError)(nil); errors.As(err, &terminal) {
		return t.write(ctx, s, transfer.FailExpose(s.state, s.seen, terminal.Error()))
	}
	t.reportCreateError(s.move, t.local.blocker(s.key), err)
	t.local.exposed(s.key, s.state.Restarts, waits, err)
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Exposed", "waitsFor", waits)
	}
	return err
}

// rebind puts what was restored where it belongs. The log of the mover is kept before its pod goes. The claim of
// its cache stays until the end. The last try asks the API server whatever the caches say, and gives the delivery up
// if it is not done then.
func (t *TransferReconciler[T]) rebind(ctx context.Context, s *request[T], last bool) error {
	t.local.rebinding(s.key, s.seen.Now)
	target := types.NamespacedName{Namespace: s.move.Source.Target.Namespace, Name: s.move.Source.Target.Claim}
	t.Targets.Watch(s.object.GetUID(), target, func() { t.Enqueue(s.key) })
	found := t.found(s)
	found.Claims = slices.DeleteFunc(found.Claims, func(claim *corev1.PersistentVolumeClaim) bool { return claim.Name != s.move.Name })
	if !last && (t.local.isDeleting(s.key, found) || deleting(found) || t.local.isReserved(s.key) && t.binds(s)) {
		return nil // an event tells of the end of that; until then there is nothing to ask for
	}
	t.keepLog(ctx, s)
	done, waits, err := t.Exposer.Rebind(ctx, s.move, found)
	if terminal := (*exposer.TerminalError)(nil); errors.As(err, &terminal) {
		return t.keep(ctx, s, terminal.Error())
	}
	t.local.setBlocker(s.key, waits, err)
	switch {
	case err != nil:
		return err
	case done:
		t.local.markRebound(s.key)
		t.Enqueue(s.key)
		return nil
	case last:
		return t.keep(ctx, s, "not delivered in time")
	}
	t.local.rebinds(s.key, found)
	klog.FromContext(ctx).V(4).Info("Not delivered yet", "waitsFor", waits)
	return nil
}

// deleting tells whether all that is left of the restore is a mover pod on its way out.
func deleting(found exposer.Existing) bool {
	return found.Pod != nil && found.Pod.DeletionTimestamp != nil && len(found.Claims) == 0
}

// binds tells whether Kubernetes has yet to bind a target claim that names its volume.
func (t *TransferReconciler[T]) binds(s *request[T]) bool {
	claim, _ := t.Targets.Claim(s.object.GetUID())
	return claim != nil && claim.DeletionTimestamp == nil && claim.Spec.VolumeName != "" && claim.Status.Phase != corev1.ClaimBound
}

// keep gives a delivery up without losing what was restored.
func (t *TransferReconciler[T]) keep(ctx context.Context, s *request[T], why string) error {
	kept, err := t.Exposer.AbandonRebind(ctx, s.move, t.found(s))
	if err != nil {
		return err
	}
	return t.write(ctx, s, transfer.FailRebind(s.state, s.seen, joinNonEmpty(why, t.local.blocker(s.key), kept)))
}

// remove deletes what was exposed, or only a mover that is in the way. The log of one that has ended is
// kept first. It returns when to look again at what is still there then.
func (t *TransferReconciler[T]) remove(ctx context.Context, s *request[T], reason transfer.Reason, force bool) (time.Duration, error) {
	move, found := s.move, t.found(s)
	found.Lost = force
	if reason != transfer.ReasonCleaned {
		move.Source, found.Claims = objects.Source{}, nil
	}
	found = t.local.toRemove(s.key, found)
	snapshots := move.Source.Snapshot != nil && !t.local.isClean(s.key)
	found.HandedOver = t.local.hasExposed(s.key)
	if found.Pod == nil && len(found.Claims) == 0 && !snapshots {
		return 0, nil // it is on its way out
	}
	t.keepLog(ctx, s)
	klog.FromContext(ctx).V(2).Info("Removing what was exposed", "reason", reason, "force", force, "mover", found.Pod != nil, "claims", len(found.Claims), "snapshots", snapshots)
	waits, err := t.Exposer.Remove(ctx, move, found)
	if err != nil {
		return 0, err
	}
	t.local.markDeleted(s.key, found, !s.late)
	switch {
	case !snapshots:
	case waits != "":
		return t.cleanUpWaits(ctx, s, waits), nil
	default:
		t.local.markCleaned(s.key)
		t.Enqueue(s.key)
	}
	return 0, nil
}

// reportTerminating reports once, as an Event, that the kubelet of a node that answers has not ended a mover that was
// deleted. Nothing is forced there: the mover may still run.
func (t *TransferReconciler[T]) reportTerminating(ctx context.Context, s *request[T]) {
	waits := s.state.Phase.Terminal() && s.seen.Exposure.Condition == objects.Terminating && !s.seen.NodeLost
	if !waits || s.seen.Now.Before(s.seen.DeletingAt.Add(t.Limits.CleanUpWarning)) || !t.local.toReport(s.key) {
		return
	}
	klog.FromContext(ctx).Info("Mover pod does not end", "pod", klog.KObj(s.pod), "node", s.pod.Spec.NodeName)
	t.event(s.move, corev1.EventTypeWarning, EventCleanUpWaits, fmt.Sprintf(
		"Its mover pod %s is being deleted, and the kubelet of node %s has not confirmed its end within %s: see kubectl -n %s describe pod %s and the kubelet's log",
		s.pod.Name, s.pod.Spec.NodeName, t.Limits.CleanUpWarning, s.pod.Namespace, s.pod.Name))
}

// cleanUpWaits reports once, as an Event, what a clean-up has waited for longer than it should: only a person can do
// something about a CSI driver that does not delete a snapshot. It returns when that will be so.
func (t *TransferReconciler[T]) cleanUpWaits(ctx context.Context, s *request[T], waits string) time.Duration {
	if left := s.state.CompletedAt.Add(t.Limits.CleanUpWarning).Sub(s.seen.Now); left > 0 {
		return left
	}
	if t.local.toReport(s.key) {
		klog.FromContext(ctx).Info("Clean-up waits", "waitsFor", waits)
		t.event(s.move, corev1.EventTypeWarning, EventCleanUpWaits, "Its snapshot is not deleted yet: "+waits)
	}
	return 0
}
