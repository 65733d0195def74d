package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/truncate"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Reasons of the Kubernetes Events on the resources.
const (
	EventCompleted    = "Completed"
	EventFailed       = "Failed"
	EventCanceled     = "Canceled"
	EventRestarted    = "MoverRestarted"
	EventMoverLog     = "MoverLog"
	EventCreateFailed = "MoverCreateFailed"
	EventForeign      = "ForeignDataMover"
	// EventCleanUpWaits means that the mover pod, a claim or a snapshot is not deleted yet.
	EventCleanUpWaits = "CleanUpWaits"
)

// report publishes a write that was stored to the log, as an Event and in metrics. Acceptance has no Event: the resource names
// the accepting agent and the time, and an Event would be one more write before the first mover runs.
func (t *TransferReconciler[T]) report(ctx context.Context, key string, object T, before, after transfer.State, step transfer.Step) {
	t.local.update(key, func(kept *entry) { kept.unanswered = nil })
	lost := step.Loss.Reason != ""
	if lost {
		t.reportLost(ctx, object, after, step.Loss.Reason)
	}
	if before.Phase == after.Phase && !lost {
		klog.FromContext(ctx).V(2).Info("Status written", "step", step.Reason)
		return
	}
	klog.FromContext(ctx).Info("Phase changed", "from", before.Phase, "to", after.Phase, "reason", step.Reason, "message", after.Message)
	t.recordMetrics(key, object, before, after, step)
	spec := t.moverSpec(object)
	switch after.Phase {
	case transfer.Completed:
		t.event(spec, corev1.EventTypeNormal, EventCompleted, fmt.Sprintf("Moved %d bytes in %s", after.Progress.Done, after.CompletedAt.Sub(after.StartedAt)))
	case transfer.Failed:
		t.event(spec, corev1.EventTypeWarning, EventFailed, after.Message)
	case transfer.Canceled:
		t.event(spec, corev1.EventTypeNormal, EventCanceled, "Canceled. "+after.Message)
	case transfer.New, transfer.Accepted, transfer.Prepared, transfer.InProgress, transfer.Canceling: // the resource shows it
	}
}

// reportLost reports why a mover was replaced.
func (t *TransferReconciler[T]) reportLost(ctx context.Context, object T, after transfer.State, lost objects.LossReason) {
	klog.FromContext(ctx).Info("Mover lost, restarting", "reason", lost, "message", after.Message, "restart", after.Restarts)
	t.Metrics.MoverRestarted(t.Kind.Name, string(lost))
	t.event(t.moverSpec(object), corev1.EventTypeWarning, EventRestarted, fmt.Sprintf("%s; restart %d of %d", after.Message, after.Restarts, t.Limits.Retries))
}

// reportRefusal sends an Event when the API server refuses to create or delete an object, for a quota for example. It
// skips a repeated error. No object shows such a problem, and it may last for hours.
func (t *TransferReconciler[T]) reportRefusal(s *request[T], reason string, err error) {
	if err == nil || !isRefusal(err) || strings.TrimSpace(err.Error()) == t.local.read(s.key).blocker {
		return
	}
	t.local.setBlocker(s.key, "", err)
	t.event(s.spec, corev1.EventTypeWarning, reason, err.Error())
}

// isRefusal reports whether the API server answered that it does not change the object in the current state. It
// answers an internal error if it cannot call a webhook (k8s.io/apiserver/pkg/admission/plugin/webhook).
func isRefusal(err error) bool {
	answered := isRejected(err) || apierrors.IsInternalError(err)
	return answered && !apierrors.IsConflict(err) && !apierrors.IsTooManyRequests(err)
}

// reportObserved sends the Events of situations that no step changes.
func (t *TransferReconciler[T]) reportObserved(ctx context.Context, s *request[T]) {
	t.reportUnanswered(ctx, s)
	t.reportForeign(s)
	t.reportTerminating(ctx, s)
}

// reportUnanswered reports a write whose answer was lost, as soon as the resource shows that it was stored.
func (t *TransferReconciler[T]) reportUnanswered(ctx context.Context, s *request[T]) {
	write := t.local.read(s.key).unanswered
	if write == nil {
		return
	}
	now, stored := s.state, write.step.State
	changes := stored.Phase != write.before.Phase || stored.Restarts != write.before.Restarts // nothing shows that any other write was stored
	if changes && now.Phase == stored.Phase && now.Restarts == stored.Restarts {
		t.report(ctx, s.key, s.object, write.before, now, write.step)
	}
}

// reportForeign sends one Event for a new resource that belongs to another data mover.
func (t *TransferReconciler[T]) reportForeign(s *request[T]) {
	if !s.state.Foreign || !s.observed.OwnsMover || !s.state.Phase.IsNew() || !t.local.toReport(s.key) {
		return
	}
	t.event(s.spec, corev1.EventTypeNormal, EventForeign,
		fmt.Sprintf("Ignored by Lateen: it is for data mover %q, not Velero's own. That data mover must be installed and accept it", s.state.DataMover))
}

// reportTerminating sends one Event if a kubelet has not ended a deleted mover pod whose deletion is not forced: the mover may
// still run.
func (t *TransferReconciler[T]) reportTerminating(ctx context.Context, s *request[T]) {
	waits := s.state.Phase.Terminal() && s.observed.Exposure.Condition == objects.Terminating && !s.state.ForcesEnd(s.observed)
	if !waits || s.observed.Now.Before(s.observed.DeletingAt.Add(t.Limits.CleanUpWarning)) || !t.local.toReport(s.key) {
		return
	}
	klog.FromContext(ctx).Info("Mover pod has not terminated", "pod", klog.KObj(s.pod), "node", s.pod.Spec.NodeName)
	t.event(s.spec, corev1.EventTypeWarning, EventCleanUpWaits, fmt.Sprintf(
		"Mover pod %s is being deleted, but the kubelet of node %s has not confirmed its end within %s: see kubectl -n %s describe pod %s and the kubelet's log",
		s.pod.Name, s.pod.Spec.NodeName, t.Limits.CleanUpWarning, s.pod.Namespace, s.pod.Name))
}

// maxEventBytes is the API server's limit for the message of an Event.
const maxEventBytes = 1024

func (t *TransferReconciler[T]) event(about objects.MoverSpec, kind, reason, note string) {
	version, name := about.GVK.ToAPIVersionAndKind()
	regarding := &corev1.ObjectReference{APIVersion: version, Kind: name, Namespace: about.Namespace, Name: about.Name, UID: about.UID}
	t.Recorder.Event(regarding, kind, reason, EventMessage(note))
}

// EventMessage truncates a text to the API server's limit for the message of an Event.
func EventMessage(text string) string {
	return truncate.End(text, maxEventBytes)
}

// logLines is the number of lines of a failed mover's log in an Event.
const logLines = 10

// keepLog saves the log of a mover that works or has ended once, before its pod is deleted, unless its node is lost. A log that
// cannot be read blocks nothing.
func (t *TransferReconciler[T]) keepLog(ctx context.Context, s *request[T]) {
	mover := objects.ReadPod(s.pod)
	hasLog := mover.Condition == objects.Running || mover.Condition == objects.Succeeded || mover.Condition == objects.Failed || mover.Reason == objects.LostKilled
	if !hasLog || s.observed.NodeLost || !t.local.toLog(s.key, s.pod.UID) {
		return
	}
	if s.state.Phase.HasFailed() {
		t.reportLog(ctx, s)
	}
	text, err := t.Exposer.Log(ctx, s.pod)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to read mover log", "err", err)
		return
	}
	t.MoverLog(ctx, klog.KObj(s.pod).String(), text)
}

// reportLog sends the last lines of a failed mover's log as an Event.
func (t *TransferReconciler[T]) reportLog(ctx context.Context, s *request[T]) {
	lines, err := t.Exposer.LastLines(ctx, s.pod, logLines)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to read last lines of mover log", "err", err)
		return
	}
	t.event(s.spec, corev1.EventTypeWarning, EventMoverLog, logMessage(string(lines)))
}

// logMessage returns the message of an Event. The end of a log says why the mover failed.
func logMessage(lines string) string {
	const prefix = "Last lines of the mover log: "
	return prefix + truncate.Start(lines, maxEventBytes-len(prefix))
}

// recordMetrics records a phase change.
func (t *TransferReconciler[T]) recordMetrics(key string, object T, before, after transfer.State, step transfer.Step) {
	now := t.Clock.Now()
	since := t.local.entered(key, now)
	if since.IsZero() {
		since = phaseSince(before)
	}
	t.Metrics.ObservePhase(t.Kind.Name, string(before.Phase), now.Sub(since))
	if after.Phase.Terminal() {
		t.Metrics.Finished(t.Kind.Name, string(after.Phase), string(step.Reason))
	}
	if after.Phase.HasSucceeded() {
		t.Metrics.BytesMoved(t.Kind.Name, after.Progress.Done)
	}
	t.OnUpdate(object, before, after)
}

// phaseSince returns when the phase before this write began, as recorded in the resource. Prepared has no timestamp
// of its own, so it counts from AcceptedAt.
func phaseSince(before transfer.State) time.Time {
	switch before.Phase {
	case transfer.Accepted, transfer.Prepared:
		return before.AcceptedAt
	case transfer.InProgress, transfer.Canceling:
		return before.StartedAt
	case transfer.Completed, transfer.Failed, transfer.Canceled:
		return before.CompletedAt
	case transfer.New:
	}
	return before.CreatedAt
}

// isRejected reports whether an error proves that the write did not happen. With no answer or a 5xx it may have
// happened.
func isRejected(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= 400 && code < 500
}
