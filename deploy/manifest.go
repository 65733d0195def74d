package deploy

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

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
