package transfer

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Object is a custom resource of one of the kinds.
type Object interface {
	comparable
	metav1.Object
	runtime.Object
}

// Kind says how one kind of custom resource takes part in a transfer. Its functions are pure.
type Kind[T Object] struct {
	Name     string // as in metrics: the resource's name in the singular
	PodLabel string // the label by which Velero finds its mover pods
	GVK      schema.GroupVersionKind
	Copy     func(T) T                                // deep
	Get      func(T) State                            // copies the common state out …
	Set      func(T, State)                           // … and back in
	Source   func(T) (corev1.ObjectReference, string) // the pod and the name of its volume
	Command  func(object T, resourceTimeout string) []string
	Result   func(message string) (Outcome, error)
}
