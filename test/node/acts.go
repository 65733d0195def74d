package node

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Vanish removes a pod without a trace, like the deletion of a node or a forced deletion.
func (n *Node) Vanish(ctx context.Context, namespace, name string) error {
	err := n.client.CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
	if err != nil {
		return fmt.Errorf("delete pod %s: %w", name, err)
	}
	return nil
}

// Evict ends a pod as the kubelet does under resource pressure. It ends the containers, then sets the status to
// Failed with reason Evicted and the condition DisruptionTarget. The object stays.
func (n *Node) Evict(namespace, name, message string) error {
	return n.disrupt(namespace, name, disruption{
		Reason: "Evicted", Condition: corev1.PodReasonTerminationByKubelet, Message: message,
	})
}

// Preempt ends a pod as the scheduler does for a pod of higher priority, without the deletion. The object stays, so
// that a test can read it. On a full node, the real scheduler also deletes it.
func (n *Node) Preempt(namespace, name, message string) error {
	return n.disrupt(namespace, name, disruption{Condition: corev1.PodReasonPreemptionByScheduler, Message: message})
}

// disrupt ends a pod of this node that is not terminal yet.
func (n *Node) disrupt(namespace, name string, end disruption) error {
	n.lock.Lock()
	defer n.lock.Unlock()
	for _, run := range n.pods {
		if run.pod.Namespace != namespace || run.pod.Name != name || run.closed {
			continue
		}
		run.closed, run.disruption = true, end
		close(run.disrupted)
		return nil
	}
	return fmt.Errorf("end pod %s/%s: it does not run on node %s", namespace, name, n.options.Name)
}

// close marks a pod so that disrupt ignores it.
func (n *Node) close(run *podRun) {
	n.lock.Lock()
	defer n.lock.Unlock()
	run.closed = true
}
