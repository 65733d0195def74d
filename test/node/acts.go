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

// Evict ends a pod as the kubelet does under pressure: its containers are ended, then its status says Failed,
// Evicted and DisruptionTarget. The object stays.
func (n *Node) Evict(namespace, name, message string) error {
	return n.disrupt(namespace, name, disruption{
		Reason: "Evicted", Condition: corev1.PodReasonTerminationByKubelet, Message: message,
	})
}

// Preempt ends a pod as the scheduler has it ended for one of higher priority, up to the deletion: the object
// stays, so that it can be looked at. Where a node is full, the real scheduler does all of it.
func (n *Node) Preempt(namespace, name, message string) error {
	return n.disrupt(namespace, name, disruption{Condition: corev1.PodReasonPreemptionByScheduler, Message: message})
}

// disrupt ends a pod of this node that has not ended yet.
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

// close ends the time in which a pod can be disrupted.
func (n *Node) close(run *podRun) {
	n.lock.Lock()
	defer n.lock.Unlock()
	run.closed = true
}
