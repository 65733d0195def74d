package node

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Silence disconnects the kubelet from the API server while containers continue. It sets the node and its pods to not
// Ready at once, which the node lifecycle controller does after 50 s. The real controller then adds the taints.
func (n *Node) Silence(ctx context.Context) error {
	n.speech.Lock()
	defer n.speech.Unlock()
	if n.silence == nil {
		n.silence = make(chan struct{})
	}
	if err := n.postReadiness(ctx, corev1.ConditionFalse, "NodeNotReady"); err != nil {
		return err
	}
	return n.postStatus(ctx, corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.")
}

// StopKubelet ends only the kubelet's process. Containers continue, and nothing passes between the node and the API
// server. The node stays Ready, as it does for the 40 s of its lease. Resume restarts the kubelet.
func (n *Node) StopKubelet() {
	n.speech.Lock()
	defer n.speech.Unlock()
	if n.silence == nil {
		n.silence = make(chan struct{})
	}
	n.stopped = n.silence
}

// hear waits until the kubelet runs.
func (n *Node) hear(ctx context.Context) {
	n.speech.RLock()
	stopped := n.stopped
	n.speech.RUnlock()
	if stopped == nil {
		return
	}
	select {
	case <-stopped:
	case <-ctx.Done():
	}
}

// Resume ends the silence: the kubelet reports Ready and the current state of its pods.
func (n *Node) Resume(ctx context.Context) error {
	n.speech.Lock()
	defer n.speech.Unlock()
	if err := n.ready(ctx); err != nil {
		return err
	}
	if err := n.postReadiness(ctx, corev1.ConditionTrue, ""); err != nil {
		return err
	}
	if n.silence != nil {
		close(n.silence)
		n.silence, n.stopped = nil, nil
	}
	return nil
}

// Delete calls Silence and deletes the Node, as a cloud does after it removed a machine. The real pod garbage
// collector deletes its pods after a while.
func (n *Node) Delete(ctx context.Context) error {
	if err := n.Silence(ctx); err != nil {
		return err
	}
	if err := n.client.CoreV1().Nodes().Delete(ctx, n.options.Name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete node %s: %w", n.options.Name, err)
	}
	return nil
}

// LoseAgent deletes the node-agent's pod in Velero's namespace. No successor becomes Ready until the faults are
// cleared.
func (n *Node) LoseAgent(ctx context.Context, namespace string) error {
	n.Faults.Add(Fault{Match: isAgent, NeverStarts: true})
	for _, pod := range n.runningPods() {
		if pod.Namespace != namespace || !isAgent(pod) {
			continue
		}
		if err := n.client.CoreV1().Pods(namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{}); err != nil {
			return fmt.Errorf("delete node-agent pod %s: %w", pod.Name, err)
		}
	}
	return nil
}

// isAgent reports whether a pod has the DaemonSet's label of Velero.
func isAgent(pod *corev1.Pod) bool { return pod.Labels["role"] == "node-agent" }

// speak waits for the end of a silence. The next silence starts only after the caller has called done.
func (n *Node) speak(ctx context.Context) (done func(), err error) {
	for {
		n.speech.RLock()
		silence := n.silence
		if silence == nil {
			return n.speech.RUnlock, nil
		}
		n.speech.RUnlock()
		select {
		case <-silence:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// runningPods returns the pods whose containers run according to the kubelet.
func (n *Node) runningPods() []*corev1.Pod {
	n.lock.Lock()
	defer n.lock.Unlock()
	var pods []*corev1.Pod
	for _, run := range n.pods {
		if run.runs {
			pods = append(pods, run.pod)
		}
	}
	return pods
}

// runs records the start or end of a pod's containers.
func (n *Node) runs(run *podRun, now bool) {
	n.lock.Lock()
	defer n.lock.Unlock()
	run.runs = now
}

// postReadiness posts the condition Ready of all running pods and ignores deleted ones.
func (n *Node) postReadiness(ctx context.Context, ready corev1.ConditionStatus, reason string) error {
	for _, pod := range n.runningPods() {
		err := n.write(ctx, pod, corev1.PodStatus{Conditions: readiness(ready, reason)})
		if err != nil && !apierrors.IsNotFound(err) && !isAnothers(err) {
			return err
		}
	}
	return nil
}

func readiness(ready corev1.ConditionStatus, reason string) []corev1.PodCondition {
	return []corev1.PodCondition{{Type: corev1.PodReady, Status: ready, Reason: reason, LastTransitionTime: metav1.Now()}}
}
