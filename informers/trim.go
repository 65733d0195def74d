package informers

import (
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trimBackup leaves of a PodVolumeBackup that is over, and that nobody has to clean up after, what
// counting needs. Thousands of them stay in a cluster until their backup expires.
func trimBackup(backup *velerov1.PodVolumeBackup) {
	if !over(backup) {
		return
	}
	*backup = velerov1.PodVolumeBackup{
		ObjectMeta: bare(backup.ObjectMeta),
		Spec:       velerov1.PodVolumeBackupSpec{Node: backup.Spec.Node},
		Status:     velerov1.PodVolumeBackupStatus{Phase: backup.Status.Phase},
	}
}

func over(backup *velerov1.PodVolumeBackup) bool {
	switch backup.Status.Phase {
	case velerov1.PodVolumeBackupPhaseCompleted, velerov1.PodVolumeBackupPhaseFailed, velerov1.PodVolumeBackupPhaseCanceled:
		return !slices.ContainsFunc(backup.Finalizers, func(name string) bool { return name == "velero.io/pod-volume-finalizer" })
	default:
		return false
	}
}

func bare(meta metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: meta.Name, Namespace: meta.Namespace, UID: meta.UID, ResourceVersion: meta.ResourceVersion,
		CreationTimestamp: meta.CreationTimestamp, DeletionTimestamp: meta.DeletionTimestamp,
	}
}

// trimPod leaves of a pod what placing a mover and reading an exposure need. Patches of pods are never
// computed from the cache.
func trimPod(pod *corev1.Pod) {
	spec := pod.Spec
	pod.Spec = corev1.PodSpec{
		NodeName:          spec.NodeName,
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
