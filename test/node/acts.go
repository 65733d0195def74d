package node

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Vanish takes a pod away without a trace, as a node that is deleted or a forced deletion does.
func (n *Node) Vanish(ctx context.Context, namespace, name string) error {
	err := n.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	if err != nil {
		return fmt.Errorf("delete pod %s: %w", name, err)
	}
	return nil
}

// Evict ends a pod that runs as the kubelet does under pressure: Failed, Evicted, DisruptionTarget.
func (n *Node) Evict(namespace, name, message string) error {
	return n.disrupt(namespace, name, corev1.PodStatus{
		Phase: corev1.PodFailed, Reason: "Evicted", Message: message,
		Conditions: []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet, Message: message,
		}},
	})
}

// Preempt ends a pod that runs as the scheduler has it ended for one of higher priority.
func (n *Node) Preempt(namespace, name, message string) error {
	return n.disrupt(namespace, name, corev1.PodStatus{
		Phase: corev1.PodFailed,
		Conditions: []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler, Message: message,
		}},
	})
}

func (n *Node) disrupt(namespace, name string, status corev1.PodStatus) error {
	n.lock.Lock()
	defer n.lock.Unlock()
	for _, run := range n.pods {
		if run.pod.Namespace != namespace || run.pod.Name != name {
			continue
		}
		select {
		case run.evicted <- status:
			return nil
		default:
			return fmt.Errorf("pod %s is being evicted already", name)
		}
	}
	return fmt.Errorf("node %s runs no pod %s/%s", n.options.Name, namespace, name)
}
