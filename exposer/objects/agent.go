package objects

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// velerosAgent is how Velero's binary is told to be a node-agent, by its own installer, its Helm chart and operators
// alike. Lateen's takes no such argument, and an adopted DaemonSet has lost it; labels, names and images tell nothing.
const velerosAgent = "node-agent server"

// IsVelerosAgent tells whether the pod of a node-agent runs Velero's, not Lateen's.
func IsVelerosAgent(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(container corev1.Container) bool {
		return strings.Contains(strings.Join(slices.Concat(container.Command, container.Args), " "), velerosAgent)
	})
}
