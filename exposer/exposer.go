// Package exposer acts on the objects of an exposure: it creates what is absent and deletes what is
// ours. It keeps no state, reads no ConfigMap and decides nothing about the transfer.
package exposer

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/exposer/build"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Exposer makes and removes mover pods.
type Exposer struct {
	Client   kubernetes.Interface
	Template build.Template
	Settings build.Settings
	// Rejected is told of each mover that had to be made without the class, because the class was
	// deleted after it had been resolved.
	Rejected func(ctx context.Context, mover *corev1.Pod, class string)
}

// HopelessError is an error that no further attempt can cure.
type HopelessError struct{ Err error }

func (h *HopelessError) Error() string { return h.Err.Error() }

// Unwrap is the cause.
func (h *HopelessError) Unwrap() error { return h.Err }

// Ensure makes the mover pod, or takes the one that exists if it belongs to the same custom resource.
// A pod that the API server calls invalid (422) is a HopelessError; everything else may pass.
func (e *Exposer) Ensure(ctx context.Context, request build.Request) error {
	pod := build.MoverPod(request, e.Template, e.Settings)
	err := e.create(ctx, pod)
	if apierrors.IsForbidden(err) && pod.Spec.PriorityClassName != "" {
		err = e.withoutClass(ctx, pod, err)
	}
	switch {
	case apierrors.IsAlreadyExists(err):
		return e.adopt(ctx, request)
	case apierrors.IsInvalid(err):
		return &HopelessError{fmt.Errorf("create mover pod %s: %w", request.Name, err)}
	case err != nil:
		return fmt.Errorf("create mover pod %s: %w", request.Name, err)
	}
	return nil
}

func (e *Exposer) create(ctx context.Context, pod *corev1.Pod) error {
	_, err := e.Client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

// withoutClass makes the pod without its priority class if the class is the reason for the refusal.
// Admission says 403 for a missing class as for a quota, so the class is looked up to tell them apart.
func (e *Exposer) withoutClass(ctx context.Context, pod *corev1.Pod, refused error) error {
	class := pod.Spec.PriorityClassName
	missing, err := priority.MissingNow(ctx, class, func(ctx context.Context, name string) (*schedulingv1.PriorityClass, error) {
		return e.Client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
	})
	if err != nil || !missing {
		return refused
	}
	plain := build.WithoutPriorityClass(pod)
	if err := e.create(ctx, plain); err != nil {
		return err
	}
	e.Rejected(ctx, plain, class)
	return nil
}

// adopt takes over a pod that exists: one that a lost answer hid from us, or one that Velero's own
// agent made, which then gets our labels.
func (e *Exposer) adopt(ctx context.Context, request build.Request) error {
	pods := e.Client.CoreV1().Pods(request.Namespace)
	pod, err := pods.Get(ctx, request.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("get mover pod %s: %w", request.Name, err)
	case !build.OwnedBy(pod, request.UID):
		return fmt.Errorf("pod %s/%s exists and belongs to something else; delete it to let the transfer go on", pod.Namespace, pod.Name)
	case pod.Labels[build.LabelAcceptor] != "":
		return nil
	}
	patch, err := json.Marshal(build.Labelled(request.UID, request.Acceptor))
	if err != nil {
		return fmt.Errorf("encode labels of mover pod %s: %w", request.Name, err)
	}
	if _, err := pods.Patch(ctx, request.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label mover pod %s: %w", request.Name, err)
	}
	return nil
}

// Remove deletes a mover pod, and no other that has got its name since.
func (e *Exposer) Remove(ctx context.Context, pod *corev1.Pod) error {
	options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}
	err := e.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, options)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete mover pod %s: %w", pod.Name, err)
	}
	return nil
}
