package informers

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// EnqueueOwner wakes the key of the custom resource of that kind which controls the object. The label
// that names it is not looked at: anybody can set one, and long names are shortened in it.
func EnqueueOwner[T Object](kind string, enqueue func(key string)) func(T) {
	return func(object T) {
		if owner := metav1.GetControllerOfNoCopy(object); owner != nil && owner.Kind == kind {
			enqueue(cache.NewObjectName(object.GetNamespace(), owner.Name).String())
		}
	}
}

// Key is the queue key of an object: namespace/name.
func Key(object metav1.Object) string {
	return cache.MetaObjectToName(object).String()
}
