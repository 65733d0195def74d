package cluster

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
)

// Manifests returns objects as sent to the API server, with the label of the installation for a namespace.
func Manifests(namespace string, objects []runtime.Object) ([]*unstructured.Unstructured, error) {
	var all []*unstructured.Unstructured
	for _, object := range objects {
		manifest, err := deploy.Manifest(object)
		if err != nil {
			return nil, err
		}
		labels := manifest.GetLabels()
		labels[api.LabelInstalled] = namespace
		manifest.SetLabels(labels)
		all = append(all, manifest)
	}
	return all, nil
}

// Installed lists the objects of a resource, in all namespaces, that have the label of this installation.
func (c *Client) Installed(ctx context.Context, resource schema.GroupVersionResource) ([]unstructured.Unstructured, error) {
	list, err := c.Dynamic.Resource(resource).List(ctx, metav1.ListOptions{LabelSelector: api.LabelInstalled + "=" + c.Namespace})
	if apierrors.IsNotFound(err) {
		return nil, nil // the definition does not exist
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", resource.Resource, err)
	}
	return list.Items, nil
}
