package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Movers report in Events about the resource, not the pod. Each mover patches one Event for each reason, and creates a
// second one after ten silent minutes (velero-protocol 3.3).
const (
	moverReasons  = "Data-Path-" // the prefix of all
	eventStarted  = moverReasons + "Started"
	eventProgress = moverReasons + "Progress"
)

// mayBeFrom reports whether the mover in that pod can have sent the Event. A mover on a lost node may still run beside its
// replacement. Without a pod, the Event of any mover counts.
func mayBeFrom(mover *corev1.Pod, event *corev1.Event) bool {
	if mover == nil {
		return true
	}
	host, node := event.Source.Host, mover.Spec.NodeName
	here := host == "" || node == "" || host == node
	return here && !event.CreationTimestamp.Time.Before(mover.CreationTimestamp.Time)
}

// lastReport returns the last progress that the mover in that pod reported; zero if there is none.
func lastReport(events []*corev1.Event, mover *corev1.Pod) (last transfer.Report) {
	for _, event := range events {
		if event.Reason != eventProgress || !mayBeFrom(mover, event) || event.LastTimestamp.Time.Before(last.At) {
			continue
		}
		if progress, err := transfer.ReadProgress(event.Message); err == nil {
			last = transfer.Report{Progress: progress, At: event.LastTimestamp.Time}
		}
	}
	return last
}

// observeReports observes since when a mover reports nothing, and whether a canceled one has started. The coordinator
// writes its progress to the resource. Its Events are listed only before it counts as stalled, after a cancel, and when it
// has failed: the API server reads all Events of the namespace for that. A failure does not wait for the answer, and a
// cancel no longer than its grace.
func (t *TransferReconciler[T]) observeReports(ctx context.Context, s *request[T]) error {
	known := t.local.read(s.key)
	last := activity{startedAt: s.state.StartedAt, progress: s.state.Progress}
	if known.activity.startedAt.Equal(s.state.StartedAt) {
		last.reportedAt = known.activity.reportedAt
	}
	s.observed.ActiveAt = t.local.active(s.key, last, s.observed.Now)
	condition := s.observed.Exposure.Condition
	fails := condition == objects.Failed || condition == objects.Succeeded && s.observed.Result == nil
	if condition != objects.Running && !fails {
		return nil
	}
	s.observed.Started = known.begun == s.pod.UID
	cancels := !s.state.Phase.IsMoving() && !s.observed.Started
	stalls := t.Limits.StallTimeout > 0 && !s.observed.Now.Before(s.observed.ActiveAt.Add(t.Limits.StallTimeout))
	if !cancels && !stalls && !fails {
		return nil
	}
	events, err := t.LiveEvents(ctx, s.object.GetUID())
	switch {
	case err != nil && (fails || cancels && !s.observed.Now.Before(s.observed.CanceledAt.Add(t.Limits.CancelGrace))):
		klog.FromContext(ctx).V(2).Info("Failed to list Events of the mover", "err", err)
		return nil
	case err != nil:
		return fmt.Errorf("list Events of the mover of %s: %w", s.key, err)
	}
	for _, event := range events {
		at := event.LastTimestamp.Time
		if !strings.HasPrefix(event.Reason, moverReasons) || !mayBeFrom(s.pod, event) || at.Before(s.state.StartedAt) {
			continue
		}
		if event.Reason == eventStarted || event.Reason == eventProgress { // the first is deleted after an hour
			s.observed.Started = true
			t.local.update(s.key, func(kept *entry) { kept.begun = s.pod.UID })
		}
		if at.After(last.reportedAt) {
			last.reportedAt = at
		}
	}
	s.observed.ActiveAt, s.observed.Report = t.local.active(s.key, last, s.observed.Now), lastReport(events, s.pod)
	return nil
}

// Reports returns the progress Events about a resource.
type Reports func(about types.UID) []*corev1.Event

// WriteProgress writes the last progress that a mover reported to its resource, when the limiter allows a write. A
// coordinator does that for the movers of all nodes: so they need one watch of Events, and their writes have one limit.
// An agent of Velero writes what the movers on its node report.
func (t *TransferReconciler[T]) WriteProgress(ctx context.Context, key string, reports Reports, limiter flowcontrol.RateLimiter) (time.Duration, error) {
	object, exists := t.Cached(key)
	if !exists || t.Agent.RunsVelero(t.Kind.Get(object).Node) {
		return 0, nil
	}
	s := t.newRequest(key, object)
	step := transfer.NextProgress(s.state, lastReport(reports(object.GetUID()), t.mover(s)), t.Clock.Now(), t.Limits)
	if step.Action != transfer.Write {
		return step.After, nil
	}
	if err := limiter.Wait(ctx); err != nil {
		return 0, fmt.Errorf("wait for a write of progress: %w", err)
	}
	if err := t.write(ctx, s, step); errors.Is(err, errConflict) {
		return ConflictRequeue, nil
	} else if err != nil {
		return 0, err
	}
	return 0, nil
}
