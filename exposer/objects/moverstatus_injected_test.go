package objects

import (
	"testing"

	"github.com/stretchr/testify/require"
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
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		want Exposure
	}{
		"completed while a sidecar runs": {
			pod:  pod(corev1.PodRunning, injected(running()), ended(0, "Completed", result)),
			want: Exposure{Condition: Succeeded, Message: result},
		},
		"completed after a sidecar that failed": {
			pod:  pod(corev1.PodFailed, injected(ended(1, "Error", "proxy: address in use")), ended(0, "Completed", result)),
			want: Exposure{Condition: Succeeded, Message: result},
		},
		"completed after a sidecar that left a message": {
			pod:  pod(corev1.PodSucceeded, injected(ended(0, "Completed", "bye")), ended(0, "Completed", result)),
			want: Exposure{Condition: Succeeded, Message: result},
		},
		"exit 1 after a sidecar that completed": {
			pod:  pod(corev1.PodFailed, injected(ended(0, "Completed", result)), ended(1, "Error", "no such bucket")),
			want: Exposure{Condition: Failed, Message: "no such bucket (exit code 1)"},
		},
		"exit 1 while a sidecar runs": {
			pod:  pod(corev1.PodRunning, injected(running()), ended(1, "Error", "no such bucket")),
			want: Exposure{Condition: Failed, Message: "no such bucket (exit code 1)"},
		},
		"evicted when it had just completed": {
			pod:  pod(corev1.PodFailed, withReason("Evicted", "The node was low on resource: memory. "), ended(0, "Completed", result)),
			want: Exposure{Condition: Succeeded, Message: result},
		},
		"evicted, and ended with exit code 0 before it was done": {
			pod:  pod(corev1.PodFailed, withReason("Evicted", "The node was low on resource: memory. "), ended(0, "Completed", "")),
			want: Exposure{Condition: Lost, Reason: LostEvicted, Message: "mover was evicted: The node was low on resource: memory. "},
		},
		"a sidecar that ended before the mover": {
			pod:  pod(corev1.PodRunning, injected(ended(0, "Completed", result)), running()),
			want: Exposure{Condition: Running},
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, on(test.want), ReadPod(test.pod))
		})
	}
}
