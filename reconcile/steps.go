package reconcile

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/build"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// fieldManager names Lateen as the author of a change.
const fieldManager = "lateen"

// write changes the custom resource as the step says, if nobody has changed it since it was read.
func (t *Transfers[T]) write(ctx context.Context, key string, object T, step transfer.Step) error {
	before := t.Kind.Get(object)
	starts := step.State.Phase == transfer.InProgress && before.Phase != transfer.InProgress
	uid := object.GetUID()
	if starts && !t.Slots.Take(uid, key, before.CreatedAt, func() { t.Wake(key) }) {
		return nil // another worker was faster; the line wakes this one
	}
	changed := t.Kind.Copy(object)
	t.Kind.Set(changed, step.State)
	patch, err := mergePatch(object, changed)
	if err != nil {
		return fmt.Errorf("make patch of %s: %w", key, err)
	}
	written, err := t.Client.Patch(ctx, object.GetName(), types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		if starts && definite(err) {
			t.Slots.Release(uid)
		}
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			klog.FromContext(ctx).V(4).Info("Somebody else was faster; their event is on its way", "step", step.Reason)
			return nil
		}
		return fmt.Errorf("write %s to %s: %w", step.Reason, key, err)
	}
	t.memory.wrote(key, written)
	after := t.Kind.Get(written)
	if !after.Phase.TakesSlot() && after.Phase != transfer.Prepared {
		t.Slots.Release(uid)
	}
	t.report(ctx, key, written, before, after, step)
	return nil
}

// definite tells whether an error says that the write did not happen; without an answer from the API
// server, or with a 5xx, it may have.
func definite(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500
}

// expose makes the mover. What can never be made ends the transfer at once.
func (t *Transfers[T]) expose(ctx context.Context, key string, object T, seen transfer.Seen) error {
	err := t.ensure(ctx, object)
	if hopeless := (*exposer.HopelessError)(nil); errors.As(err, &hopeless) {
		return t.write(ctx, key, object, transfer.CannotExpose(t.Kind.Get(object), seen, hopeless.Error()))
	}
	t.memory.exposed(key, t.Kind.Get(object).Restarts, err)
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Exposed")
	}
	return err
}

func (t *Transfers[T]) ensure(ctx context.Context, object T) error {
	source, err := t.source(ctx, object)
	if err != nil {
		return err
	}
	if source == nil {
		return errors.New("find source pod: it is gone") // the next look ends the transfer
	}
	_, volume := t.Kind.Source(object)
	located, err := t.Paths.Locate(ctx, source, volume)
	if err != nil {
		return err
	}
	return t.Exposer.Ensure(ctx, build.Request{
		Name: object.GetName(), Namespace: object.GetNamespace(), UID: object.GetUID(),
		GVK: t.Kind.GVK, PodLabel: t.Kind.PodLabel,
		Attempt: t.Kind.Get(object).Restarts, Acceptor: t.Node, Node: t.Node,
		Command:  t.Kind.Command(object, t.ResourceTimeout.String()),
		HostPath: located.Path, Block: located.Block, Privileged: t.Privileged,
		Tolerations: source.Spec.Tolerations,
	})
}

// remove deletes the mover pod, after keeping the log of one that has ended.
func (t *Transfers[T]) remove(ctx context.Context, key string, object T, state transfer.State, reason transfer.Reason) error {
	pod, err := t.surely(ctx, key, object, state)
	if err != nil || pod == nil || !t.memory.toRemove(key, pod.UID) {
		return err
	}
	switch build.ReadPod(pod).Condition {
	case build.Succeeded, build.Failed:
		t.keepLog(ctx, object, state, pod)
	default:
	}
	klog.FromContext(ctx).V(2).Info("Removing mover pod", "pod", klog.KObj(pod), "reason", reason)
	if err := t.Exposer.Remove(ctx, pod); err != nil {
		return err
	}
	t.memory.wasRemoved(key, pod.UID)
	return nil
}
