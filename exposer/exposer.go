// Package exposer acts on the objects of an exposure: it creates missing objects and deletes Lateen's own. It keeps
// no state, reads no ConfigMap and decides nothing about the transfer.
package exposer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Exposer creates and deletes movers and the volumes that they read or write.
type Exposer struct {
	Client    kubernetes.Interface
	Snapshots Snapshots
	Templates map[corev1.OSName]objects.Template // always contains linux
	Paths     HostPaths
	// Source returns the cached pod with that key if it runs on this node; nil falls back to a GET.
	Source func(key string) *corev1.Pod
	// StorageClass returns the cached class of that name; nil falls back to a GET. The function itself may be nil.
	StorageClass func(name string) *storagev1.StorageClass
	// Rejected is called for each mover created without the configured class. The class was deleted after it had
	// been resolved, or an admission webhook or policy changed the pod.
	Rejected func(ctx context.Context, mover *corev1.Pod, class string)
	// Created is called for each created mover; it may be nil.
	Created func(mover *corev1.Pod)

	settings atomic.Pointer[objects.Settings]
}

// SetSettings sets the settings of the movers and volumes that are created from now on.
func (e *Exposer) SetSettings(settings objects.Settings) { e.settings.Store(&settings) }

// current returns the settings that were set last; the zero value before that.
func (e *Exposer) current() objects.Settings {
	if settings := e.settings.Load(); settings != nil {
		return *settings
	}
	return objects.Settings{}
}

// Existing is what the caches hold of an exposure.
type Existing struct {
	Pod    *corev1.Pod // the mover; nil if there is none
	Force  bool        // no kubelet confirms the end of the pod, so its deletion is forced
	Claims []*corev1.PersistentVolumeClaim
	// HandedOver reports that this process deleted the original VolumeSnapshot, so a cache miss needs no GET.
	HandedOver bool
}

// Ensure creates missing objects, the mover pod last. If it must wait, it returns a message; an event of the object
// waited for triggers the next reconcile. It adopts existing objects of the same custom resource. It returns a
// TerminalError if the API server calls an object invalid (422), or if the source does not exist. Most other errors
// may pass.
func (e *Exposer) Ensure(ctx context.Context, move objects.MoverSpec) (waits string, err error) {
	plan := planner{exposer: e, spec: move, settings: e.current()}
	if move.Source.Snapshot != nil {
		waits, plan.size, err = e.handOver(ctx, move, plan.dryRun)
		if err != nil || waits != "" {
			return waits, err
		}
	}
	if err := plan.create(ctx); err != nil {
		return "", err
	}
	for _, want := range plan.plan.Claims {
		claim, err := e.ensureClaim(ctx, want)
		if err != nil {
			return "", err
		}
		if claim.Name != move.Name {
			continue // a cache
		}
		// The claim owns the copies, so they are created after it. A driver that was faster retries.
		for _, ensure := range plan.copies {
			if err := ensure(ctx, claim); err != nil {
				return "", err
			}
		}
	}
	return "", e.ensurePod(ctx, plan.plan.Pod, plan.settings.PriorityClass)
}

// ensurePod creates the mover pod or adopts the existing one. class is the priority class in force.
func (e *Exposer) ensurePod(ctx context.Context, pod *corev1.Pod, class string) error {
	_, created, err := e.create(ctx, pod, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		return e.adopt(ctx, pod)
	case err != nil:
		return err
	case class != "" && created.Spec.PriorityClassName != class:
		e.Rejected(ctx, created, class)
	}
	klog.FromContext(ctx).V(2).Info("Created mover", "pod", klog.KObj(created), "priorityClass", created.Spec.PriorityClassName, "priority", ptr.Deref(created.Spec.Priority, 0))
	if e.Created != nil {
		e.Created(created)
	}
	return nil
}

// create creates a pod, without its priority class if the API server rejects the pod because the class is missing.
// Admission returns 403 for a missing class and for a quota, so a GET of the class distinguishes them. wanted is
// the pod of the last request; created is the pod that the API server returned.
func (e *Exposer) create(ctx context.Context, pod *corev1.Pod, options metav1.CreateOptions) (wanted, created *corev1.Pod, err error) {
	pods := e.Client.CoreV1().Pods(pod.Namespace)
	created, err = pods.Create(ctx, pod, options)
	if class := pod.Spec.PriorityClassName; apierrors.IsForbidden(err) && class != "" {
		missing, unknown := priority.MissingNow(ctx, class, func(ctx context.Context, name string) (*schedulingv1.PriorityClass, error) {
			return e.Client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
		})
		if unknown == nil && missing {
			pod = objects.WithoutPriorityClass(pod)
			created, err = pods.Create(ctx, pod, options)
		}
	}
	return pod, created, wrapCreate("create mover pod "+pod.Name, err)
}

// wrapCreate wraps an error with its operation. An object that the API server calls invalid can never be created,
// so that error is a TerminalError.
func wrapCreate(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsInvalid(err):
		return &TerminalError{fmt.Errorf("%s: %w", what, err)}
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
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

// adoption returns the patch that labels an existing object of the same custom resource as Lateen's. It is nil if
// the object already has the labels. The error says that the object belongs to something else.
func adoption(what string, have, want metav1.Object) ([]byte, error) {
	owner := metav1.GetControllerOfNoCopy(want)
	switch {
	case owner == nil:
		return nil, errors.New("adopt " + what + " without an owner")
	case !objects.OwnedBy(have, owner.UID):
		return nil, fmt.Errorf("%s %s/%s exists but has another owner; delete it to unblock the transfer", what, have.GetNamespace(), have.GetName())
	case have.GetLabels()[api.LabelAcceptor] != "":
		return nil, nil
	}
	return json.Marshal(objects.Labelled(owner.UID, want.GetLabels()[api.LabelAcceptor]))
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

// CleanUp deletes the found objects, and no recreated object of the same name. For a snapshot it deletes both pairs
// of VolumeSnapshot and content as far as possible. waits says what blocks it; empty means that nothing is left.
func (e *Exposer) CleanUp(ctx context.Context, move objects.MoverSpec, found Existing) (waits string, err error) {
	if err := e.DeleteMover(ctx, found); err != nil {
		return "", err
	}
	for _, claim := range found.Claims {
		if err := e.removeClaim(ctx, claim); err != nil {
			return "", err
		}
	}
	if move.Source.Snapshot == nil {
		return "", nil
	}
	return e.cleanSnapshots(ctx, move, found.HandedOver)
}
