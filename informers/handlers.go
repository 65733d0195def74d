package informers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// EnqueueOwner returns a handler that enqueues the custom resource of that kind which controls the object. It ignores
// the label that names the owner: anybody can set it, and it truncates long names.
func EnqueueOwner[T Object](kind string, enqueue func(key string)) func(T) {
	return func(object T) {
		if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.Kind == kind {
			enqueue(cache.NewObjectName(object.GetNamespace(), owner.Name).String())
		}
	}
}

// Key returns the queue key of an object: namespace/name.
func Key(object metav1.Object) string {
	return cache.MetaObjectToName(object).String()
}
