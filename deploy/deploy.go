// Package deploy creates the typed objects of an installation. It is pure: it calls no API server, reads no flags,
// and imports only the names of package exposer/api.
package deploy

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Objects returns all objects of Lateen's agent in the order of their creation.
func Objects(o Options) []runtime.Object {
	all := append(RBAC(o.Namespace), MoverAccess(o.Namespace, o.Movers)...)
	all = append(all, podPolicy(o)...)
	all = append(all, flowControl(o.Namespace)...)
	all = append(all, networkPolicy(o.Namespace), daemonSet(o))
	if o.Windows {
		all = append(all, windowsDaemonSet(o))
	}
	return all
}

// Manifest returns an object as sent to an API server or written to a file. It omits the status, which the server
// owns. The error names a kind that cannot be converted.
func Manifest(object runtime.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("convert %s: %w", object.GetObjectKind().GroupVersionKind().Kind, err)
	}
	delete(fields, "status")
	return &unstructured.Unstructured{Object: fields}, nil
}
