package transfer

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/objects"
)

// restoreWait is the init container in which a pod waits for its volumes (Velero's pod volume restore action).
const restoreWait = "restore-wait"

// InitBlocker returns what blocks a restore to a volume of the pod; empty if the restore can begin.
func InitBlocker(pod *corev1.Pod) string {
	for _, status := range pod.Status.InitContainerStatuses {
		if status.Name == restoreWait && status.State.Running != nil {
			return ""
		}
	}
	return fmt.Sprintf("init container %s of pod %s/%s is not running", restoreWait, pod.Namespace, pod.Name)
}

// PodEnded reports whether the pod is terminal: none of its containers runs again.
func PodEnded(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// PodResumed returns why a volume of the pod must not be restored any more; empty if a restore is allowed. After
// restore-wait succeeds, the containers of the pod start and write to the volume. An earlier success counts too: a
// restarted kubelet runs restore-wait again.
func PodResumed(pod *corev1.Pod, volume string) string {
	if pod == nil {
		return ""
	}
	ended := pod.Status.Phase == corev1.PodRunning || PodEnded(pod)
	for _, status := range pod.Status.InitContainerStatuses {
		if status.Name == restoreWait {
			ended = ended || succeededIn(status.State) || succeededIn(status.LastTerminationState)
		}
	}
	if !ended {
		return ""
	}
	return fmt.Sprintf("init container %s of pod %s/%s has ended, so containers of the pod may have written to volume %s, and no mover may overwrite it; "+
		"the volume may have been restored completely: check its data, and if some is missing delete the pod and run the restore again",
		restoreWait, pod.Namespace, pod.Name, volume)
}

func succeededIn(state corev1.ContainerState) bool {
	return state.Terminated != nil && state.Terminated.ExitCode == 0
}

// ConsumerBlocker returns what blocks a restore to the claim; empty if the restore can begin.
func ConsumerBlocker(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) string {
	mode := ptr.Deref(class.VolumeBindingMode, storagev1.VolumeBindingImmediate)
	if mode == storagev1.VolumeBindingImmediate || claim.Annotations[objects.AnnotationSelectedNode] != "" {
		return ""
	}
	return fmt.Sprintf("claim %s/%s has no consumer, and storage class %s waits for the first", claim.Namespace, claim.Name, class.Name)
}
