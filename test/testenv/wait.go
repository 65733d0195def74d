package testenv

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WaitPod returns the pod after done accepts it. The error contains the last observed state. A terminal pod that done
// rejects is an error at once.
func (w *Env) WaitPod(ctx context.Context, namespace, name string, done func(*corev1.Pod) bool) (*corev1.Pod, error) {
	watcher, err := w.Kube.CoreV1().Pods(namespace).Watch(ctx, named(name))
	if err != nil {
		return nil, fmt.Errorf("watch pod %s: %w", name, err)
	}
	found, err := await(ctx, watcher, done, podEnded)
	if err != nil {
		return nil, fmt.Errorf("wait for pod %s: %w", name, err)
	}
	return found, nil
}

// podEnded returns an error for a terminal pod.
func podEnded(pod *corev1.Pod) error {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return fmt.Errorf("it has ended as %s", pod.Status.Phase)
	}
	return nil
}

// WaitPodGone waits until the pod is deleted.
func (w *Env) WaitPodGone(ctx context.Context, namespace, name string) error {
	pods := w.Kube.CoreV1().Pods(namespace)
	options := named(name)
	list, err := pods.List(ctx, options)
	if err != nil {
		return fmt.Errorf("list pod %s: %w", name, err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	options.ResourceVersion = list.ResourceVersion
	watcher, err := pods.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watch pod %s: %w", name, err)
	}
	return awaitDeletion(ctx, watcher, "pod "+name)
}

// NodeAgentPod returns the DaemonSet's pod on node after done accepts it.
func (w *Env) NodeAgentPod(ctx context.Context, node string, done func(*corev1.Pod) bool) (*corev1.Pod, error) {
	watcher, err := w.Kube.CoreV1().Pods(w.Namespace).Watch(ctx,
		metav1.ListOptions{LabelSelector: "role=node-agent", FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("watch node-agent pods: %w", err)
	}
	found, err := await(ctx, watcher, done)
	if err != nil {
		return nil, fmt.Errorf("wait for the node-agent pod of %s: %w", node, err)
	}
	return found, nil
}

// Ready reports whether the kubelet reports the pod as Ready.
func Ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}
