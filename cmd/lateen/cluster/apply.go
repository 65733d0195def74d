package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"github.com/lateen-project/lateen/exposer/api"
)

// FieldManager owns the fields that `lateen install --apply` sets.
const FieldManager = "lateen"

// Resource returns the client for a manifest's kind. All kinds of an installation have regular plurals.
func (c *Client) Resource(manifest *unstructured.Unstructured) dynamic.ResourceInterface {
	plural, _ := apimeta.UnsafeGuessKindToResource(manifest.GroupVersionKind())
	if manifest.GetNamespace() == "" {
		return c.Dynamic.Resource(plural)
	}
	return c.Dynamic.Resource(plural).Namespace(manifest.GetNamespace())
}

// Install creates one object. An existing object is updated with apply, and unchanged without it.
func (c *Client) Install(ctx context.Context, manifest *unstructured.Unstructured) error {
	var did string
	// The API server may need a moment to serve the resource of a new definition.
	moment := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 6}
	err := retry.OnError(moment, func(err error) bool { return isUnknownResource(err) && ctx.Err() == nil }, func() (err error) {
		did, err = c.write(ctx, manifest)
		return err
	})
	if err != nil {
		return fmt.Errorf("install %s %s: %w", manifest.GetKind(), manifest.GetName(), err)
	}
	_, err = fmt.Fprintf(c.Out, "%s %s %s\n", manifest.GetKind(), manifest.GetName(), did)
	return err
}

// isUnknownResource distinguishes a 404 for the resource from a 404 for the namespace or the object.
func isUnknownResource(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details == nil || details.Name == ""
}

func (c *Client) write(ctx context.Context, manifest *unstructured.Unstructured) (did string, err error) {
	resource := c.Resource(manifest)
	if !c.Apply {
		_, err := resource.Create(ctx, manifest, metav1.CreateOptions{FieldManager: FieldManager})
		if apierrors.IsAlreadyExists(err) {
			return "already exists, unchanged", nil
		}
		return "created", err
	}
	before, err := resource.Get(ctx, manifest.GetName(), metav1.GetOptions{})
	switch {
	case isUnknownResource(err), err != nil && !apierrors.IsNotFound(err):
		return "", err
	case err == nil:
		if err := foreignAgents(before); err != nil {
			return "", err
		}
		if unknown := NewerFields(before, manifest); len(unknown) > 0 {
			return fmt.Sprintf("is of a newer Velero (it has %s), unchanged", unknown[0]), nil
		}
		manifest = withLabel(manifest, before.GetLabels()[api.LabelInstalled])
	}
	after, err := resource.Apply(ctx, manifest.GetName(), manifest, metav1.ApplyOptions{FieldManager: FieldManager, Force: true})
	switch {
	case err != nil:
		return "", err
	case before == nil || before.GetUID() == "":
		return "created", nil
	case apiequality.Semantic.DeepEqual(comparableFields(before), comparableFields(after)):
		return "unchanged", nil
	}
	return "changed", nil
}

// comparableFields returns an object without the fields that other components update at any time.
func comparableFields(object *unstructured.Unstructured) map[string]any {
	own := object.DeepCopy()
	own.SetManagedFields(nil)
	own.SetResourceVersion("")
	delete(own.Object, "status")
	return own.Object
}

// withLabel sets the installed label to the value of the existing object. An empty value removes the label.
func withLabel(manifest *unstructured.Unstructured, installed string) *unstructured.Unstructured {
	manifest = manifest.DeepCopy()
	labels := manifest.GetLabels()
	if labels[api.LabelInstalled] = installed; installed == "" {
		delete(labels, api.LabelInstalled)
	}
	manifest.SetLabels(labels)
	return manifest
}

// foreignAgents rejects a DaemonSet of Velero's own agents: an apply merges the two, and Lateen's image has no
// /velero to run.
func foreignAgents(found *unstructured.Unstructured) error {
	if found.GetKind() != "DaemonSet" || found.GetLabels()["app.kubernetes.io/part-of"] == "lateen" {
		return nil
	}
	return fmt.Errorf("it belongs to Velero's agents; replace them with lateen adopt -n %s", found.GetNamespace())
}

// InstallDefinitions installs the definitions and waits until all of them are served.
func (c *Client) InstallDefinitions(ctx context.Context, definitions []*unstructured.Unstructured) error {
	missing := map[string]bool{}
	for _, definition := range definitions {
		if err := c.Install(ctx, definition); err != nil {
			return err
		}
		missing[definition.GetName()] = true
	}
	err := Follow(ctx, c.Dynamic.Resource(Definitions()), metav1.ListOptions{}, func(event watch.EventType, definition *unstructured.Unstructured) {
		if established(definition) && event != watch.Deleted {
			delete(missing, definition.GetName())
		}
	}, func() bool { return len(missing) == 0 })
	if err != nil {
		return fmt.Errorf("wait for %d CustomResourceDefinitions to be established: %w", len(missing), err)
	}
	return nil
}

func established(definition *unstructured.Unstructured) bool {
	return condition(definition, "Established") == "True"
}

// condition returns the status of a condition; "" if the object has no condition of that type.
func condition(object *unstructured.Unstructured, kind string) string {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, each := range conditions {
		if fields, ok := each.(map[string]any); ok && fields["type"] == kind {
			status, _ := fields["status"].(string)
			return status
		}
	}
	return ""
}
