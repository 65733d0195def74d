package apiserver

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
)

// Delete deletes an object, or marks it as being deleted if finalizers or a pod's grace period delay that. It returns
// the object as the API server reports it.
func (s *Server) Delete(plural, namespace, name string, options metav1.DeleteOptions) (*Object, error) {
	t := s.table(plural)
	before := t.objects[key(namespace, name)]
	if before == nil {
		return nil, apierrors.NewNotFound(t.GroupResource(), name)
	}
	if err := t.check(before, options.Preconditions); err != nil {
		return nil, err
	}
	grace := t.grace(before, options.GracePeriodSeconds)
	dry := len(options.DryRun) > 0
	deleting := before.GetDeletionTimestamp() != nil
	if deleting {
		grace = min(grace, ptr.Deref(before.GetDeletionGracePeriodSeconds(), 0))
	}
	graceful := t.Resource.Resource == "pods"
	immediate := grace == 0 && len(before.GetFinalizers()) == 0
	switch {
	case deleting && (graceful || !immediate) && ptrIs(before.GetDeletionGracePeriodSeconds(), grace):
		return before, nil
	case immediate && !graceful && dry:
		return before, nil
	case immediate && !graceful:
		s.commit(t, before, nil)
		return before, nil
	}
	now := &Object{Unstructured: *before.DeepCopy()}
	now.SetDeletionGracePeriodSeconds(&grace)
	now.SetDeletionTimestamp(new(metav1.NewTime(s.Now().UTC().Truncate(time.Second).Add(time.Duration(grace) * time.Second))))
	if dry {
		return now, nil
	}
	now = s.commit(t, before, now)
	if immediate { // of a pod there is an event before
		now = s.commit(t, now, nil)
	}
	return now, nil
}

func (t *table) check(object *Object, preconditions *metav1.Preconditions) error {
	if preconditions == nil {
		return nil
	}
	if uid := preconditions.UID; uid != nil && *uid != object.GetUID() {
		return t.conflict(object.GetName(), fmt.Sprintf("Precondition failed: UID in precondition: %s, UID in object meta: %s", *uid, object.GetUID()))
	}
	if version := preconditions.ResourceVersion; version != nil && *version != object.GetResourceVersion() {
		return t.conflict(object.GetName(), fmt.Sprintf("Precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s", *version, object.GetResourceVersion()))
	}
	return nil
}

// grace returns the grace period of a deletion in seconds. Only pods that a kubelet has to stop have one (the
// strategy of pods in Kubernetes' pkg/registry).
func (t *table) grace(object *Object, requested *int64) int64 {
	if t.Resource.Resource != "pods" {
		return 0
	}
	phase, _, _ := unstructured.NestedString(object.Object, "status", "phase")
	node, _, _ := unstructured.NestedString(object.Object, "spec", "nodeName")
	own, found, _ := unstructured.NestedInt64(object.Object, "spec", "terminationGracePeriodSeconds")
	switch {
	case node == "" || phase == string(corev1.PodSucceeded) || phase == string(corev1.PodFailed):
		return 0
	case requested != nil:
		return *requested
	case found:
		return own
	default:
		return corev1.DefaultTerminationGracePeriodSeconds
	}
}
