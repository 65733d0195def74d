package apiserver

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// admit plays the admission plugins NamespaceLifecycle and Priority.
func (s *Server) admit(t *table, object *Object) error {
	if t.Namespaced {
		namespace := s.Get("namespaces", "", object.GetNamespace())
		switch {
		case namespace == nil:
			return apierrors.NewNotFound(corev1.Resource("namespaces"), object.GetNamespace())
		case namespace.GetDeletionTimestamp() != nil:
			return t.forbidden(object, fmt.Sprintf("unable to create new content in namespace %s because it is being terminated", namespace.GetName()))
		}
	}
	if t.Resource.Resource != "pods" {
		return nil
	}
	class, _, _ := unstructured.NestedString(object.Object, "spec", "priorityClassName")
	value := int64(0)
	if class != "" {
		found := s.Get("priorityclasses", "", class)
		if found == nil {
			return t.forbidden(object, fmt.Sprintf("no PriorityClass with name %s was found", class))
		}
		value = int64(As[schedulingv1.PriorityClass](found).Value)
	}
	return unstructured.SetNestedField(object.Object, value, "spec", "priority")
}

func (t *table) forbidden(object *Object, why string) error {
	return apierrors.NewForbidden(t.GroupResource(), object.GetName(), fmt.Errorf("%s", why)) //nolint:err113 // the API server's words
}
