package informers

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

func minimalMeta(meta metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: meta.Name, Namespace: meta.Namespace, UID: meta.UID, ResourceVersion: meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp, DeletionTimestamp: meta.DeletionTimestamp,
	}
}

// trimPod keeps what the scheduling of a mover and the reading of its state need. Patches of pods are never computed
// from the cache.
func trimPod(pod *corev1.Pod) {
	spec := pod.Spec
	pod.Spec = corev1.PodSpec{
		NodeName:          spec.NodeName,
		Containers:        memoryLimits(pod),
		Volumes:           spec.Volumes,
		Tolerations:       spec.Tolerations,
		PriorityClassName: spec.PriorityClassName,
		Priority:          spec.Priority,
		OS:                spec.OS,
	}
	status := pod.Status
	pod.Status = corev1.PodStatus{
		Phase: status.Phase, Reason: status.Reason, Message: status.Message,
		Conditions: status.Conditions, ContainerStatuses: status.ContainerStatuses,
		InitContainerStatuses: status.InitContainerStatuses,
	}
}

// trimAgent also keeps the commands of an agent's containers, which show whether it is Velero's.
func trimAgent(pod *corev1.Pod) {
	var containers []corev1.Container
	for _, container := range pod.Spec.Containers {
		containers = append(containers, corev1.Container{Name: container.Name, Command: container.Command, Args: container.Args})
	}
	trimPod(pod)
	pod.Spec.Containers = containers
}

// trimToOwner keeps the metadata of a pod, with its labels and owners.
func trimToOwner(pod *corev1.Pod) {
	meta := minimalMeta(pod.ObjectMeta)
	meta.Labels, meta.OwnerReferences = pod.Labels, pod.OwnerReferences
	*pod = corev1.Pod{ObjectMeta: meta}
}

// trimNode keeps the Ready condition of a Node.
func trimNode(node *corev1.Node) {
	conditions := slices.DeleteFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool { return condition.Type != corev1.NodeReady })
	*node = corev1.Node{ObjectMeta: minimalMeta(node.ObjectMeta), Status: corev1.NodeStatus{Conditions: conditions}}
}

// memoryLimits returns the containers of a mover that have a memory limit, with nothing else. The message of an
// OOM-killed mover names the limit.
func memoryLimits(pod *corev1.Pod) []corev1.Container {
	if !metav1.HasLabel(pod.ObjectMeta, api.LabelMover) {
		return nil
	}
	var limited []corev1.Container
	for _, container := range pod.Spec.Containers {
		if limit, ok := container.Resources.Limits[corev1.ResourceMemory]; ok {
			limited = append(limited, corev1.Container{Name: container.Name, Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{corev1.ResourceMemory: limit},
			}})
		}
	}
	return limited
}
