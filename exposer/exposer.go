// Package exposer acts on the objects of an exposure: it creates what is absent and deletes what is
// ours. It keeps no state, reads no ConfigMap and decides nothing about the transfer.
package exposer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Exposer makes and removes movers, and the volumes that they read or write.
type Exposer struct {
	Client    kubernetes.Interface
	Snapshots Snapshots
	Templates map[corev1.OSName]objects.Template // linux is always there
	Settings  objects.Settings
	Paths     HostPaths
	// Source is the pod of that key if it runs on this node, or nil: a pod that is cached is not asked for.
	Source func(key string) *corev1.Pod
	// StorageClass is the cached class of that name, or nil: one that is cached is not asked for. It may be nil.
	StorageClass func(name string) *storagev1.StorageClass
	// Rejected is called for each mover that was created without the configured class: the class was deleted after it
	// had been resolved, or an admission webhook or policy changed the pod.
	Rejected func(ctx context.Context, mover *corev1.Pod, class string)
	// Created is told of each mover that was made; it may be nil.
	Created func(mover *corev1.Pod)
}

// Existing is what the caches have of an exposure.
type Existing struct {
	Pod    *corev1.Pod // the mover; nil if there is none
	Lost   bool        // with its node: no kubelet confirms the end of that pod, so it is deleted by force
	Claims []*corev1.PersistentVolumeClaim
	// HandedOver tells that this process deleted the original VolumeSnapshot: one that no cache has needs no read.
	HandedOver bool
}

// TerminalError is an error that no further attempt can cure.
type TerminalError struct{ Err error }

func (h *TerminalError) Error() string { return h.Err.Error() }

// Unwrap is the cause.
func (h *TerminalError) Unwrap() error { return h.Err }

// Ensure makes all that a movement lacks, up to its mover pod, or says in words what it waits for: an event
// of that brings it on. What exists is taken if it belongs to the same custom resource. It is a HopelessError
// if the API server calls an object invalid (422), or if the source does not exist; everything else may pass.
func (e *Exposer) Ensure(ctx context.Context, move objects.MoverSpec) (waits string, err error) {
	plan := planner{exposer: e, spec: move}
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
		// They go with the claim, so they come after it; a driver that was quicker tries again.
		for _, ensure := range plan.copies {
			if err := ensure(ctx, claim); err != nil {
				return "", err
			}
		}
	}
	return "", e.ensurePod(ctx, plan.plan.Pod)
}

// ensurePod makes the mover pod, or takes the one that exists.
func (e *Exposer) ensurePod(ctx context.Context, pod *corev1.Pod) error {
	_, created, err := e.create(ctx, pod, metav1.CreateOptions{})
	switch class := e.Settings.PriorityClass; {
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

// create makes a pod as wanted, or without its priority class if that is the reason for a refusal. Admission
// says 403 for a missing class as for a quota, so the class is looked up to tell them apart. It returns what
// was wanted in the end, and what the API server made of it.
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

// wrapCreate says what failed; an object that the API server calls invalid will never be made.
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

// adopt takes over a pod that exists: one that a lost answer hid from us, or one that Velero's own
// agent made, which then gets our labels.
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
	if _, err := pods.Patch(ctx, want.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label mover pod %s: %w", want.Name, err)
	}
	return nil
}

// adoption is the patch that makes an object ours which belongs to the same custom resource as the one
// that is wanted; nil if it is ours already.
func adoption(what string, have, want metav1.Object) ([]byte, error) {
	owner := metav1.GetControllerOfNoCopy(want)
	switch {
	case owner == nil:
		return nil, errors.New("adopt " + what + " without an owner")
	case !objects.OwnedBy(have, owner.UID):
		return nil, fmt.Errorf("%s %s/%s exists and belongs to something else; delete it to let the transfer go on", what, have.GetNamespace(), have.GetName())
	case have.GetLabels()[objects.LabelAcceptor] != "":
		return nil, nil
	}
	return json.Marshal(objects.Labelled(owner.UID, want.GetLabels()[objects.LabelAcceptor]))
}

// Remove deletes what was found, and no other object that has got its name since. Of a snapshot it removes
// both pairs of VolumeSnapshot and content, as far as it can, and says what it waits for; nothing of them is left if waits
// is empty.
func (e *Exposer) Remove(ctx context.Context, move objects.MoverSpec, found Existing) (waits string, err error) {
	if found.Pod != nil {
		options := uidPrecondition(found.Pod)
		if found.Lost {
			options.GracePeriodSeconds = ptr.To[int64](0)
		}
		err := e.Client.CoreV1().Pods(found.Pod.Namespace).Delete(ctx, found.Pod.Name, options)
		if err != nil && !apierrors.IsNotFound(err) {
			return "", fmt.Errorf("delete mover pod %s: %w", found.Pod.Name, err)
		}
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

// uidPrecondition deletes this very object.
func uidPrecondition(object metav1.Object) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(object.GetUID()))}
}
