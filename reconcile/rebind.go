package reconcile

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// rebind binds the restored volume to its target claim. It saves the mover's log before it deletes the pod. The cache
// claim of the mover stays until the clean-up. It sends no request while an event is still due.
func (t *TransferReconciler[T]) rebind(ctx context.Context, s *request[T]) error {
	t.local.update(s.key, func(kept *entry) { kept.rebindAt = cmp.Or(kept.rebindAt, s.observed.Now) })
	if _, known := t.moverClaim(s); !known {
		return nil // its watch enqueues this resource
	}
	found := t.found(s)
	found.Claims = slices.DeleteFunc(found.Claims, func(claim *corev1.PersistentVolumeClaim) bool { return claim.Name != s.spec.Name })
	detached, watched := t.Attached.Detached(s.object.GetUID())
	if t.local.isDeleting(s.key, found) || deleting(found) || t.binds(s) || watched && !detached {
		return nil // an event reports the end of this
	}
	found.Detached = detached
	t.keepLog(ctx, s)
	rebound, err := t.Exposer.Rebind(ctx, s.spec, found)
	if terminal := (*exposer.TerminalError)(nil); errors.As(err, &terminal) {
		return t.abandonRebind(ctx, s, terminal.Error())
	}
	t.local.setBlocker(s.key, rebound.Waits, err)
	switch {
	case err != nil:
		return t.extendRebind(s, err)
	case rebound.Done:
		t.local.update(s.key, func(kept *entry) { kept.rebound = true })
		t.Enqueue(s.key)
		return nil
	}
	if uid := s.object.GetUID(); rebound.Attachment != "" {
		t.Attached.Watch(uid, types.NamespacedName{Name: rebound.Attachment}, func() { t.Enqueue(s.key) })
	} else {
		t.Attached.Forget(uid) // on the same node, the attachment of the next consumer has the same name
	}
	t.local.markRebind(s.key, found, rebound.Reserved)
	klog.FromContext(ctx).V(2).Info("Rebind is waiting", "waitsFor", rebound.Waits)
	return nil
}

// extendRebind begins the grace anew if a request had no answer: an agent that was cut off has had no time to rebind.
func (t *TransferReconciler[T]) extendRebind(s *request[T], err error) error {
	if answer := apierrors.APIStatus(nil); !errors.As(err, &answer) {
		t.local.update(s.key, func(kept *entry) { kept.rebindAt = time.Time{} })
	}
	return err
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
	bound, message, err := t.Exposer.AbandonRebind(ctx, s.spec, t.found(s))
	if err != nil {
		return t.extendRebind(s, err)
	}
	if bound {
		return t.write(ctx, s, transfer.CompleteRebind(s.state, s.observed, message))
	}
	t.keepLog(ctx, s)
	return t.write(ctx, s, transfer.FailRebind(s.state, s.observed, joinNonEmpty(why, t.local.read(s.key).blocker, message)))
}
