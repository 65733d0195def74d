package testenv

import (
	"context"
	"fmt"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// Apply applies the objects in order, as `kubectl apply --server-side` does. Each object must have apiVersion and
// kind. The error names the object that failed.
func Apply(ctx context.Context, config *rest.Config, objects ...runtime.Object) error {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	discovered, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("make discovery client: %w", err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(discovered))
	for _, object := range objects {
		if err := apply(ctx, client, mapper, object); err != nil {
			return err
		}
	}
	return nil
}

func apply(ctx context.Context, client dynamic.Interface, mapper apimeta.RESTMapper, object runtime.Object) error {
	kind := object.GetObjectKind().GroupVersionKind()
	mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return fmt.Errorf("find resource of %s: %w", kind, err)
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return fmt.Errorf("convert %s: %w", kind, err)
	}
	wanted := &unstructured.Unstructured{Object: fields}
	resource := dynamic.ResourceInterface(client.Resource(mapping.Resource))
	if mapping.Scope.Name() == apimeta.RESTScopeNameNamespace {
		resource = client.Resource(mapping.Resource).Namespace(wanted.GetNamespace())
	}
	if _, err := resource.Apply(ctx, wanted.GetName(), wanted, metav1.ApplyOptions{FieldManager: "testenv", Force: true}); err != nil {
		return fmt.Errorf("apply %s %s: %w", kind.Kind, wanted.GetName(), err)
	}
	return nil
}
