package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// messageBytes is the kubelet's limit for a termination message (MaxContainerTerminationMessageLength of its package container).
const messageBytes = 4096

// address is the address of everything on a simulated node.
const address = "127.0.0.1"

// post writes a pod's status as its kubelet and keeps the conditions of other components.
func (n *Node) post(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID}, // another pod may have the name now
		"status":   status,
	})
	if err != nil {
		return fmt.Errorf("encode status of pod %s: %w", pod.Name, err)
	}
	err = insist(ctx, func() error {
		_, err := n.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
	if err != nil {
		return fmt.Errorf("post %s of pod %s: %w", status.Phase, pod.Name, err)
	}
	return nil
}

// insist retries for up to 10 s while the API server is unreachable. Any response of the server is final.
func insist(ctx context.Context, write func() error) (err error) {
	const attempts, pause = 50, 200 * time.Millisecond
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for range attempts {
		if err = write(); err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
	return err
}

func started(pod *corev1.Pod, now metav1.Time) corev1.PodStatus {
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now,
		HostIP: address, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}},
		InitContainerStatuses: initialized(pod, now), Conditions: conditions(corev1.ConditionTrue, "", ""),
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true, Started: new(true), ContainerID: containerID(pod),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}

func waiting(pod *corev1.Pod, why Waiting) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodPending, StartTime: new(metav1.Now()), HostIP: address}
	var names []string
	for _, container := range pod.Spec.Containers {
		names = append(names, container.Name)
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Started: new(false),
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}},
		})
	}
	status.Conditions = conditions(corev1.ConditionFalse, "ContainersNotReady", fmt.Sprintf("containers with unready status: %s", names))
	return status
}

// ended returns the status of a pod whose containers have all ended with the same result.
func ended(pod *corev1.Pod, end Result, began metav1.Time) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodSucceeded, Conditions: completed()}
	reason := "Completed"
	if end.ExitCode != 0 {
		status.Phase, status.Conditions = corev1.PodFailed, conditions(corev1.ConditionFalse, unready(began), "")
		reason = "Error"
	}
	if end.Reason != "" {
		reason = end.Reason
	}
	for _, container := range pod.Spec.Containers {
		terminated := corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Started: new(false),
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: end.ExitCode, Reason: reason, Message: tail(end.Message, messageBytes),
			}},
		}
		if !began.IsZero() {
			terminated.ContainerID = containerID(pod)
			terminated.State.Terminated.ContainerID = terminated.ContainerID
			terminated.State.Terminated.StartedAt, terminated.State.Terminated.FinishedAt = began, metav1.Now()
		}
		status.ContainerStatuses = append(status.ContainerStatuses, terminated)
	}
	return status
}

// outlived returns the status of a pod whose mover has ended and whose sidecars still run. The name of a mover's
// container is the UID of its pod's controller.
func outlived(pod *corev1.Pod, end Result, began metav1.Time) corev1.PodStatus {
	status := started(pod, began)
	status.Conditions = conditions(corev1.ConditionFalse, "ContainersNotReady", "")
	owner := metav1.GetControllerOfNoCopy(pod)
	for i, container := range ended(pod, end, began).ContainerStatuses {
		if owner != nil && container.Name == string(owner.UID) {
			status.ContainerStatuses[i] = container
		}
	}
	return status
}

// conditions returns the kubelet's conditions of a pod.
func conditions(ready corev1.ConditionStatus, reason, message string) []corev1.PodCondition {
	now := metav1.Now()
	return []corev1.PodCondition{
		// The scheduler sets it too, except for a pod created with a nodeName.
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.ContainersReady, Status: ready, Reason: reason, Message: message, LastTransitionTime: now},
		{Type: corev1.PodReady, Status: ready, Reason: reason, Message: message, LastTransitionTime: now},
	}
}

// completed returns the conditions of a pod that has succeeded: it is not ready, and its initialization has the same reason.
func completed() []corev1.PodCondition {
	all := conditions(corev1.ConditionFalse, "PodCompleted", "")
	for i := range all {
		if all[i].Type == corev1.PodInitialized {
			all[i].Reason = "PodCompleted"
		}
	}
	return all
}

// unready returns the reason why a failed pod is not ready. A pod whose containers never began has none but that.
func unready(began metav1.Time) string {
	if began.IsZero() {
		return "ContainersNotReady"
	}
	return "PodFailed"
}

func containerID(pod *corev1.Pod) string { return "simulated://" + string(pod.UID) }

// tail returns the end of a text that is too long, as a kubelet does.
func tail(text string, most int) string { return text[max(len(text)-most, 0):] }
