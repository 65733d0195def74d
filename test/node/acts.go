package node

import (
	"context"
	"fmt"

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
	n.lock.Lock()
	defer n.lock.Unlock()
	for _, run := range n.pods {
		if run.pod.Namespace != namespace || run.pod.Name != name || run.closed {
			continue
		}
		run.closed, run.why = true, message
		close(run.evicted)
		return nil
	}
	return fmt.Errorf("evict pod %s/%s: it does not run on node %s", namespace, name, n.options.Name)
}

// close marks a pod so that Evict ignores it.
func (n *Node) close(run *podRun) {
	n.lock.Lock()
	defer n.lock.Unlock()
	run.closed = true
}
