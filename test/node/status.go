package node

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// messageBytes is what a kubelet keeps of a termination message.
const messageBytes = 4096

// post writes a pod's status as its kubelet.
func (n *Node) post(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) error {
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID}, // another pod may have the name by now
		"status":   status,
	})
	if err != nil {
		return fmt.Errorf("encode status of pod %s: %w", pod.Name, err)
	}
	_, err = n.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("post %s of pod %s: %w", status.Phase, pod.Name, err)
	}
	return nil
}

func started(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.Now()
	status := corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now,
		HostIP: "127.0.0.1", PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}},
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodInitialized, Status: corev1.ConditionTrue},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		},
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, Ready: true, Started: new(true), ContainerID: "simulated://" + string(pod.UID),
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		})
	}
	return status
}

func waiting(pod *corev1.Pod, why Waiting) corev1.PodStatus {
	status := corev1.PodStatus{Phase: corev1.PodPending}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}},
		})
	}
	return status
}

// ended is the status of a pod whose containers have all ended alike.
func ended(pod *corev1.Pod, end Result) corev1.PodStatus {
	now := metav1.Now()
	status := corev1.PodStatus{
		Phase: corev1.PodSucceeded,
		Conditions: []corev1.PodCondition{
			{Type: corev1.ContainersReady, Status: corev1.ConditionFalse, Reason: "PodCompleted"},
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "PodCompleted"},
		},
	}
	reason := end.Reason
	if reason == "" {
		reason = "Completed"
	}
	if end.ExitCode != 0 {
		status.Phase = corev1.PodFailed
		if end.Reason == "" {
			reason = "Error"
		}
	}
	message := end.Message
	if len(message) > messageBytes {
		message = message[:messageBytes]
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image,
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: end.ExitCode, Reason: reason, Message: message, FinishedAt: now,
			}},
		})
	}
	return status
}
