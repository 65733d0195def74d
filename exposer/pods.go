package exposer

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// ensurePod creates the mover pod or adopts the existing one. class is the priority class in force.
func (e *Exposer) ensurePod(ctx context.Context, pod *corev1.Pod, class string) error {
	created, reason, err := e.create(ctx, pod, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return e.adopt(ctx, pod)
	case err != nil:
		return err
	case class != "" && created.Spec.PriorityClassName != class:
		e.Rejected(ctx, created, class, cmp.Or(reason, priority.Rejected))
	}
	klog.FromContext(ctx).V(2).Info("Created mover", "pod", klog.KObj(created), "priorityClass", created.Spec.PriorityClassName, "priority", ptr.Deref(created.Spec.Priority, 0))
	if e.Created != nil {
		e.Created(created)
	}
	return nil
}

// create creates a pod, without its priority class if the API server accepts it only without. created is the pod that the
// API server returned; reason is why it has no class.
func (e *Exposer) create(ctx context.Context, pod *corev1.Pod, options metav1.CreateOptions) (created *corev1.Pod, reason priority.Reason, err error) {
	pods := e.Client.CoreV1().Pods(pod.Namespace)
	created, err = pods.Create(ctx, pod, options)
	if pod.Spec.PriorityClassName != "" {
		reason = priority.Refusal(err)
	}
	if reason != "" {
		plain := objects.WithoutPriorityClass(pod)
		if other, otherErr := pods.Create(ctx, plain, options); otherErr == nil || apierrors.IsAlreadyExists(otherErr) {
			return other, reason, wrapCreate("create mover pod "+pod.Name, otherErr)
		}
	}
	return created, "", wrapCreate("create mover pod "+pod.Name, err)
}

// TryClass asks the API server whether it accepts a mover with a priority class. The reason is why not; it is empty if
// the class is in force, or if the answer does not depend on it.
func (e *Exposer) TryClass(ctx context.Context, namespace, class string) priority.Reason {
	const name = "lateen-priority-class" // of a pod and a DataUpload that do not exist
	move := objects.MoverSpec{GVK: api.DataUpload().GVK, Namespace: namespace, Name: name, UID: name, PodLabel: api.DataUpload().PodLabel}
	move.Command, move.Source.Snapshot = []string{"data-mover", "backup"}, &objects.SnapshotSource{}
	settings := e.current()
	settings.PriorityClass = class
	pod := objects.PlanOf(move, objects.VolumeInfo{OS: corev1.Linux}, e.Templates[corev1.Linux], settings).Pod
	created, reason, err := e.create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil && reason == "" && created.Spec.PriorityClassName != class {
		return priority.Rejected
	}
	return reason
}

// adopt takes an existing pod. Either the response to its creation was lost, or Velero's own agent created it; the
// latter gets Lateen's labels, or is deleted if it cannot work. Then the error has the caller create it again.
func (e *Exposer) adopt(ctx context.Context, want *corev1.Pod) error {
	pods := e.Client.CoreV1().Pods(want.Namespace)
	pod, err := pods.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get mover pod %s: %w", want.Name, err)
	}
	patch, err := adoption("pod", pod, want)
	if err != nil || patch == nil {
		return err
	}
	if image := pod.Spec.Containers[0].Image; image != want.Spec.Containers[0].Image && !hasRun(pod) {
		if err := e.DeleteMover(ctx, Existing{Pod: pod}); err != nil {
			return err
		}
		return fmt.Errorf("mover pod %s of Velero's agent had image %s of the agents, and was deleted", want.Name, image)
	}
	if _, err := pods.Patch(ctx, want.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label mover pod %s: %w", want.Name, err)
	}
	return nil
}

// hasRun reports whether a pod runs or has succeeded. Velero's agents give their movers the image of their DaemonSet
// (getInheritedPodInfo), which is Lateen's as soon as they are exchanged. Such a pod is pending, or fails at once.
func hasRun(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodRunning || pod.Status.Phase == corev1.PodSucceeded
}

// DeleteMover deletes the found mover pod, and no recreated pod of the same name. Only a forced deletion is sent for a
// pod that is already deleting.
func (e *Exposer) DeleteMover(ctx context.Context, found Existing) error {
	if found.Pod == nil || found.Pod.DeletionTimestamp != nil && !found.Force {
		return nil
	}
	options := uidPrecondition(found.Pod)
	if found.Force {
		options.GracePeriodSeconds = ptr.To[int64](0)
	}
	err := e.Client.CoreV1().Pods(found.Pod.Namespace).Delete(ctx, found.Pod.Name, options)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete mover pod %s: %w", found.Pod.Name, err)
	}
	return nil
}
