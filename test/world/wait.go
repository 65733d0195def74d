package world

import (
	"context"
	"fmt"
	"slices"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// WaitPVB returns the pod volume backup once done says so of it. The error has what was seen last.
func (w *World) WaitPVB(
	ctx context.Context, name string, done func(*velerov1.PodVolumeBackup) bool,
) (*velerov1.PodVolumeBackup, error) {
	watcher, err := w.watchPVBs(ctx, named(name))
	if err != nil {
		return nil, err
	}
	found, err := await(ctx, watcher, done)
	if err != nil {
		return nil, fmt.Errorf("wait for pod volume backup %s: %w", name, err)
	}
	return found, nil
}

// WaitPVBGone returns once the pod volume backup does not exist.
func (w *World) WaitPVBGone(ctx context.Context, name string) error {
	list := &velerov1.PodVolumeBackupList{}
	options := named(name)
	err := w.Velero.Get().Namespace(w.Namespace).Resource(podVolumeBackups).
		VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(list)
	if err != nil {
		return fmt.Errorf("list pod volume backup %s: %w", name, err)
	}
	if len(list.Items) == 0 {
		return nil
	}
	options.ResourceVersion = list.ResourceVersion
	watcher, err := w.watchPVBs(ctx, options)
	if err != nil {
		return err
	}
	return awaitDeletion(ctx, watcher, "pod volume backup "+name)
}

// WaitPod returns the pod once done says so of it. The error has what was seen last.
func (w *World) WaitPod(ctx context.Context, namespace, name string, done func(*corev1.Pod) bool) (*corev1.Pod, error) {
	watcher, err := w.Kube.CoreV1().Pods(namespace).Watch(ctx, named(name))
	if err != nil {
		return nil, fmt.Errorf("watch pod %s: %w", name, err)
	}
	found, err := await(ctx, watcher, done)
	if err != nil {
		return nil, fmt.Errorf("wait for pod %s: %w", name, err)
	}
	return found, nil
}

// WaitPodGone returns once the pod does not exist.
func (w *World) WaitPodGone(ctx context.Context, namespace, name string) error {
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

// NodeAgentPod returns the pod that the DaemonSet has on node, once done says so of it.
func (w *World) NodeAgentPod(ctx context.Context, node string, done func(*corev1.Pod) bool) (*corev1.Pod, error) {
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

// Ready says that the kubelet reports the pod as ready.
func Ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// Ended says that the phase is one that never changes again.
func Ended(backup *velerov1.PodVolumeBackup) bool {
	switch backup.Status.Phase {
	case velerov1.PodVolumeBackupPhaseCompleted, velerov1.PodVolumeBackupPhaseFailed, velerov1.PodVolumeBackupPhaseCanceled:
		return true
	default:
		return false
	}
}

// In returns the question whether a pod volume backup is in phase.
func In(phase velerov1.PodVolumeBackupPhase) func(*velerov1.PodVolumeBackup) bool {
	return func(backup *velerov1.PodVolumeBackup) bool { return backup.Status.Phase == phase }
}

// watchPVBs watches; without a resource version it starts with what is there.
func (w *World) watchPVBs(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	watcher, err := w.Velero.Get().Namespace(w.Namespace).Resource(podVolumeBackups).
		VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
	if err != nil {
		return nil, fmt.Errorf("watch pod volume backups: %w", err)
	}
	return watcher, nil
}
