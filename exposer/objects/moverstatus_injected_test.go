package objects

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// injected is the state of a container that a webhook added.
func injected(state func(*corev1.Pod)) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		state(pod)
		pod.Status.ContainerStatuses[len(pod.Status.ContainerStatuses)-1].Name = "proxy"
	}
}

func TestOnlyTheMoversContainerCounts(t *testing.T) {
	const result = `{"snapshotID":"k1"}`
	requireExposures(t, map[string]exposureTest{
		"completed while a sidecar runs": {
			pod(corev1.PodRunning, injected(running()), ended(0, "Completed", result)),
			"Succeeded: " + result,
		},
		"completed after a sidecar that failed": {
			pod(corev1.PodFailed, injected(ended(1, "Error", "proxy: address in use")), ended(0, "Completed", result)),
			"Succeeded: " + result,
		},
		"completed after a sidecar that left a message": {
			pod(corev1.PodSucceeded, injected(ended(0, "Completed", "bye")), ended(0, "Completed", result)),
			"Succeeded: " + result,
		},
		"exit 1 after a sidecar that completed": {
			pod(corev1.PodFailed, injected(ended(0, "Completed", result)), ended(1, "Error", "no such bucket")),
			"Failed: no such bucket (exit code 1)",
		},
		"exit 1 while a sidecar runs": {
			pod(corev1.PodRunning, injected(running()), ended(1, "Error", "no such bucket")),
			"Failed: no such bucket (exit code 1)",
		},
		"evicted when it had just completed": {
			pod(corev1.PodFailed, withReason("Evicted", "The node was low on resource: memory. "), ended(0, "Completed", result)),
			"Succeeded: " + result,
		},
		"evicted, and ended with exit code 0 before it was done": {
			pod(corev1.PodFailed, withReason("Evicted", "The node was low on resource: memory. "), ended(0, "Completed", "")),
			"Lost evicted: mover was evicted: The node was low on resource: memory. ",
		},
		"a sidecar that ended before the mover": {pod(corev1.PodRunning, injected(ended(0, "Completed", result)), running()), "Running"},
	})
}
