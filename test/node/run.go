package node

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// podRun is a pod that this node runs, from when it is seen to when it is gone.
type podRun struct {
	pod   *corev1.Pod
	began metav1.Time             // of its containers
	gone  context.CancelCauseFunc // by errGone

	deleted     chan struct{} // closed when the API says that the pod is to end
	grace       time.Duration // of the deletion; read it once deleted is closed
	disrupted   chan struct{} // closed when the node or the scheduler ends the pod
	disruption  disruption    // read it once disrupted is closed
	attachments []string      // names of VolumeAttachments that were made for it; the node's lock guards them
	runs        bool          // its containers have started and not ended; the node's lock guards it, and the next
	closed      bool          // it cannot be disrupted any more
}

// disruption is an end that comes from outside the pod and is no deletion.
type disruption struct {
	Reason    string // of the pod's status
	Condition string // reason of the condition DisruptionTarget
	Message   string
}

// What ends a pod, unless the node stops.
var (
	errGone      = errors.New("pod is gone") // nothing is left to report to
	errDeleted   = errors.New("pod is deleted")
	errDisrupted = errors.New("pod is evicted or preempted")
)

// lastGrace is how long a node that does not have to wait for a container's end does wait for it: a Runner
// may have a process to reap.
const lastGrace = killDelay + time.Second

// leastGraceSeconds is what a kubelet gives to the containers of a pod that was deleted without any grace and is
// still there, because of a finalizer (calculateEffectiveGracePeriod in its pod workers).
const leastGraceSeconds = 1

// neverStarted is what a kubelet says of a container that it has nothing of when its pod ends.
var neverStarted = Result{
	ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was terminated",
}

func newPodRun(pod *corev1.Pod, deleted context.CancelCauseFunc) *podRun {
	return &podRun{pod: pod, gone: deleted, deleted: make(chan struct{}), disrupted: make(chan struct{})}
}

// delete tells the pod that it is deleted; the caller holds the node's lock. A forced deletion shows for a
// moment as one without grace.
func (r *podRun) delete(pod *corev1.Pod) {
	if r.isDeleted() {
		return
	}
	if ptr.Deref(pod.DeletionGracePeriodSeconds, 0) == 0 && len(pod.Finalizers) == 0 {
		r.gone(errGone)
		return
	}
	r.grace = time.Duration(max(ptr.Deref(pod.DeletionGracePeriodSeconds, 0), leastGraceSeconds)) * time.Second
	close(r.deleted)
}

func (r *podRun) isDeleted() bool {
	select {
	case <-r.deleted:
		return true
	default:
		return false
	}
}

// interruptible waits for something in a pod's life, or returns why the pod is to end before that.
func interruptible[T any](ctx context.Context, run *podRun, done <-chan T) (value T, _ error) {
	select {
	case value = <-done:
		return value, nil
	case <-run.disrupted:
		return value, errDisrupted
	case <-run.deleted:
		return value, errDeleted
	case <-ctx.Done():
		return value, ctx.Err()
	}
}

// life ends when the pod is to end, by what ends it. Whoever asks has to end it in any case.
func (r *podRun) life(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	life, stop := context.WithCancelCause(ctx)
	go func() {
		_, err := interruptible[struct{}](life, r, nil)
		stop(err)
	}()
	return life, stop
}

// graceAfter is how long the containers have after what has ended them.
func (r *podRun) graceAfter(why error) time.Duration {
	if errors.Is(why, errDeleted) {
		return r.grace
	}
	return lastGrace
}

// await gives containers a grace to end, then reports them killed.
func await(results <-chan Result, grace time.Duration) Result {
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case end := <-results:
		return end
	case <-timer.C:
		return Result{ExitCode: 137}
	}
}

// verdict is the last status of a pod: how its containers ended, and what ended them if they did not by
// themselves. It is nil if there is nobody left to tell.
func (r *podRun) verdict(end Result, why error) *corev1.PodStatus {
	status := ended(r.pod, end, r.began)
	switch {
	case why == nil || errors.Is(why, errDeleted):
	case errors.Is(why, errDisrupted):
		status.Phase, status.Reason = corev1.PodFailed, r.disruption.Reason
		if r.disruption.Reason != "" { // the scheduler leaves a condition and nothing else
			status.Message = r.disruption.Message
		}
		status.Conditions = append(status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Reason: r.disruption.Condition, Message: r.disruption.Message,
		})
	default:
		return nil
	}
	return &status
}
