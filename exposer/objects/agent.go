package objects

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

// velerosAgent are the arguments that start Velero's binary as a node-agent. Velero's installer, its Helm chart and
// operators all use them. Lateen's manifests do not. A Lateen agent that is started with them labels its pod, because
// names and images do not distinguish the two.
const velerosAgent = "node-agent server"

// IsVelerosAgent reports whether a node-agent pod runs Velero's binary, not Lateen's.
func IsVelerosAgent(pod *corev1.Pod) bool {
	return pod.Labels[api.LabelAgent] != "true" && slices.ContainsFunc(pod.Spec.Containers, func(container corev1.Container) bool {
		return strings.Contains(strings.Join(slices.Concat(container.Command, container.Args), " "), velerosAgent)
	})
}
