package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/testenv"
)

// podRun is a pod of this node, from its first event to its deletion.
type podRun struct {
	pod   *corev1.Pod
	began metav1.Time             // of its containers
	gone  context.CancelCauseFunc // called with errGone or errForced

	deleted chan struct{} // closed when the pod is being deleted
	grace   time.Duration // of the deletion; valid after deleted is closed
	evicted chan struct{} // closed when the node evicts the pod
	why     string        // it is evicted; valid after evicted is closed
	closed  bool          // it can no longer be evicted; guarded by the node's lock
}

// Causes of a pod's end while the node runs.
var (
	errGone    = errors.New("pod is gone") // the object no longer exists
	errForced  = errors.New("pod is deleted without grace")
	errDeleted = errors.New("pod is deleted")
	errEvicted = errors.New("pod is evicted")
)

// lastGrace bounds the wait for a container that has no grace period. A Runner may have to reap a process.
const lastGrace = killDelay + time.Second

// leastGraceSeconds is the kubelet's minimum grace period, for a pod that was deleted without grace and still exists
// because of a finalizer (calculateEffectiveGracePeriod in its pod workers).
const leastGraceSeconds = 1

// neverStarted is the kubelet's result for a container without any state at the end of its pod.
var neverStarted = Result{
	ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The container could not be located when the pod was terminated",
}

// delete passes the deletion to the pod. The caller holds the node's lock. A forced deletion first appears as a deletion without grace.
func (p *podRun) delete(pod *corev1.Pod) {
	if p.isDeleted() {
		return
	}
	if ptr.Deref(pod.DeletionGracePeriodSeconds, 0) == 0 && len(pod.Finalizers) == 0 {
		p.gone(errForced)
		return
	}
	p.grace = time.Duration(max(ptr.Deref(pod.DeletionGracePeriodSeconds, 0), leastGraceSeconds)) * time.Second
	close(p.deleted)
}

func (p *podRun) isDeleted() bool {
	select {
	case <-p.deleted:
		return true
	default:
		return false
	}
}

// interruptible waits for an event of a pod, or returns what ends the pod earlier.
func interruptible[T any](ctx context.Context, run *podRun, done <-chan T) (value T, _ error) {
	select {
	case value = <-done:
		return value, nil
	case <-run.evicted:
		return value, errEvicted
	case <-run.deleted:
		return value, errDeleted
	case <-ctx.Done():
		return value, ctx.Err()
	}
}

// life returns a context that ends with the pod, with the cause of its end. The caller must end it in any case, and then
// nothing observes the pod any more.
func (p *podRun) life(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	life, stop := context.WithCancelCause(ctx)
	var observing sync.WaitGroup
	observing.Go(func() {
		_, err := interruptible[struct{}](life, p, nil)
		stop(err)
	})
	return life, func(why error) {
		stop(why)
		observing.Wait()
	}
}

// graceAfter returns the grace period of the containers for a cause of their end.
func (p *podRun) graceAfter(why error) time.Duration {
	if errors.Is(why, errDeleted) {
		return p.grace
	}
	return lastGrace
}

// await waits for the end of the containers for at most grace, then reports them as killed.
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

// verdict returns the final status of a pod from the result of its containers and the cause of their end. It is nil
// if no object is left to update.
func (p *podRun) verdict(end Result, why error) *corev1.PodStatus {
	status := ended(p.pod, end, p.began)
	switch {
	case why == nil || errors.Is(why, errDeleted):
	case errors.Is(why, errEvicted):
		status.Phase, status.Reason, status.Message = corev1.PodFailed, "Evicted", p.why
		status.Conditions = append(status.Conditions, corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now(),
			Reason: corev1.PodReasonTerminationByKubelet, Message: p.why,
		})
	default:
		return nil
	}
	return &status
}

// initialize runs the init containers in order. All end at once, except the one that waits for restored volumes.
func (n *Node) initialize(ctx context.Context, pod *corev1.Pod, volumes map[string]string) error {
	for i, container := range pod.Spec.InitContainers {
		if container.Name != testenv.WaitContainer {
			continue
		}
		if err := n.post(ctx, pod, initializing(pod, i)); err != nil {
			return err
		}
		wait := n.awaitRestores
		if n.options.Inits != nil {
			wait = n.runInit
		}
		if err := wait(ctx, pod, container, volumes); err != nil {
			return fmt.Errorf("run init container %s: %w", container.Name, err)
		}
	}
	return nil
}

// runInit runs an init container to completion. It fails unless the exit code is 0.
func (n *Node) runInit(ctx context.Context, pod *corev1.Pod, container corev1.Container, volumes map[string]string) error {
	log := &bytes.Buffer{}
	host := Host{Node: n.options.Name, PodDir: n.podDir(pod), Log: log, Volumes: volumes, Beside: n.beside}
	if end := n.options.Inits.run(ctx, pod, container, host); end.ExitCode != 0 {
		return fmt.Errorf("exit code %d: %s%s", end.ExitCode, end.Message, log)
	}
	return nil
}

// restoresDir is the mount path of the restored volumes in the waiting container.
const restoresDir = "/restores/"

// markInterval is the interval between looks for the mark of a restore.
const markInterval = 20 * time.Millisecond

// awaitRestores plays `velero-restore-helper UID`: it waits until every volume has the mark of that restore, then
// removes the marks. It polls, as Velero's helper does each second.
func (n *Node) awaitRestores(ctx context.Context, _ *corev1.Pod, container corev1.Container, volumes map[string]string) error {
	if len(container.Args) != 1 {
		return fmt.Errorf("want one argument, the restore's UID; got %q", container.Args)
	}
	tick := time.NewTicker(markInterval)
	defer tick.Stop()
	for _, mount := range container.VolumeMounts {
		if !strings.HasPrefix(mount.MountPath, restoresDir) {
			continue
		}
		done := filepath.Join(volumes[mount.Name], doneDir)
		mark := filepath.Join(done, container.Args[0])
		for _, err := os.Stat(mark); err != nil; _, err = os.Stat(mark) {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		if err := os.RemoveAll(done); err != nil {
			return fmt.Errorf("remove mark of volume %s: %w", mount.Name, err)
		}
	}
	return nil
}

// initializing returns the status of a pod whose init container with that index runs.
func initializing(pod *corev1.Pod, running int) corev1.PodStatus {
	status := waiting(pod, Waiting{Reason: "PodInitializing"})
	status.PodIP, status.PodIPs = address, []corev1.PodIP{{IP: address}}
	status.InitContainerStatuses = initialized(pod, metav1.Now())
	for i, container := range pod.Spec.InitContainers[running:] {
		state := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
		if i == 0 {
			state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
		}
		status.InitContainerStatuses[running+i] = corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Started: new(i == 0), State: state,
		}
	}
	for i := range status.Conditions {
		if condition := &status.Conditions[i]; condition.Type == corev1.PodInitialized {
			condition.Status, condition.Reason = corev1.ConditionFalse, "ContainersNotInitialized"
			condition.Message = fmt.Sprintf("containers with incomplete status: [%s]", pod.Spec.InitContainers[running].Name)
		}
	}
	return status
}

// initialized returns the statuses of init containers that have all succeeded.
func initialized(pod *corev1.Pod, now metav1.Time) []corev1.ContainerStatus {
	var statuses []corev1.ContainerStatus
	for _, container := range pod.Spec.InitContainers {
		statuses = append(statuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true, Started: new(false), ContainerID: containerID(pod),
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Reason: "Completed", StartedAt: now, FinishedAt: now, ContainerID: containerID(pod),
			}},
		})
	}
	return statuses
}

// IdleControllers are the controllers of Velero's server that do not handle repositories.
func IdleControllers() []string {
	return []string{
		"backup-queue", "backup", "backup-operations", "backup-deletion", "backup-finalizer", "backup-sync", "download-request",
		"gc", "restore", "restore-operations", "schedule", "server-status-request", "restore-finalizer",
	}
}
