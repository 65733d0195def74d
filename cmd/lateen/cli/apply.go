package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/csaupgrade"
	"k8s.io/client-go/util/retry"

	"github.com/lateen-project/lateen/deploy"
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
		if unknown := NewerFields(before, manifest); len(unknown) > 0 {
			return fmt.Sprintf("is of a newer Velero (it has %s), unchanged", unknown[0]), nil
		}
		if err := c.ownByApply(ctx, before); err != nil {
			return "", err
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

// ownByApply makes the fields with which Lateen created an object those of its apply. Without it, no apply removes them.
func (c *Client) ownByApply(ctx context.Context, existing *unstructured.Unstructured) error {
	resource := c.Resource(existing)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		patch, err := csaupgrade.UpgradeManagedFieldsPatch(existing, sets.New(FieldManager), FieldManager)
		if err != nil || patch == nil {
			return err
		}
		_, err = resource.Patch(ctx, existing.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
		if apierrors.IsConflict(err) {
			if changed, err := resource.Get(ctx, existing.GetName(), metav1.GetOptions{}); err == nil {
				existing = changed
			}
		}
		return err
	})
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

// RefuseForeign rejects an installation over the DaemonSets of Velero's own agents, and of Lateen's chart, before anything of that
// installation is changed: an apply merges the two, and Lateen's image has no /velero to run.
func (c *Client) RefuseForeign(ctx context.Context, manifests []*unstructured.Unstructured) error {
	var foreign []error
	for _, manifest := range manifests {
		if manifest.GetKind() != "DaemonSet" {
			continue
		}
		found, err := c.Resource(manifest).Get(ctx, manifest.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return fmt.Errorf("get DaemonSet %s: %w", manifest.GetName(), err)
		case found.GetLabels()["app.kubernetes.io/part-of"] != "lateen":
			foreign = append(foreign, fmt.Errorf("install DaemonSet %s: it belongs to Velero's agents; replace them with lateen adopt -n %s", found.GetName(), found.GetNamespace()))
		case found.GetLabels()["app.kubernetes.io/managed-by"] == "Helm":
			foreign = append(foreign, fmt.Errorf("install DaemonSet %s: it belongs to a release of Lateen's chart; change it with helm upgrade", found.GetName()))
		}
	}
	return errors.Join(foreign...)
}

// RefusePodPolicies rejects a change without --pod-policy if the installation has policies: they stay, and refuse movers that agents
// create without the flags of that time.
func (c *Client) RefusePodPolicies(ctx context.Context) error {
	found, err := c.Installed(ctx, admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies"))
	if err != nil || len(found) == 0 {
		return err
	}
	return fmt.Errorf("ValidatingAdmissionPolicy %s of this installation may refuse the movers of the changed agents: repeat --pod-policy and the flags that were given with it, such as --restrict-movers, or delete the policies and their bindings",
		found[0].GetName())
}

// RefuseLatePodPolicies rejects new policies for agents that stay as they are: these create movers by other flags, which the policies
// would refuse.
func (c *Client) RefuseLatePodPolicies(ctx context.Context) error {
	found, err := c.Installed(ctx, admissionregistrationv1.SchemeGroupVersion.WithResource("validatingadmissionpolicies"))
	if err != nil || len(found) > 0 {
		return err
	}
	_, err = c.Kube.AppsV1().DaemonSets(c.Namespace).Get(ctx, api.DaemonSetName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get DaemonSet %s: %w", api.DaemonSetName, err)
	}
	return fmt.Errorf("DaemonSet %s exists and would stay as it is, so the policies may refuse its movers: add --apply", api.DaemonSetName)
}

// CopyRights returns the RBAC objects that let agents of this installation copy Secrets and ConfigMaps, in all namespaces.
func (c *Client) CopyRights(ctx context.Context) (rights []*unstructured.Unstructured, err error) {
	names := deploy.CopyAccessNames(c.Namespace)
	for _, resource := range []string{"rolebindings", "roles", "clusterrolebindings", "clusterroles"} {
		found, err := c.Installed(ctx, rbacv1.SchemeGroupVersion.WithResource(resource))
		if err != nil {
			return nil, err
		}
		for index := range found {
			if slices.Contains(names, found[index].GetName()) {
				rights = append(rights, &found[index])
			}
		}
	}
	return rights, nil
}

// WarnOfCopyRights names those that are not among the wanted objects: agents may still read what earlier flags named.
func (c *Client) WarnOfCopyRights(ctx context.Context, wanted []*unstructured.Unstructured, to io.Writer) error {
	rights, err := c.CopyRights(ctx)
	if apierrors.IsForbidden(err) {
		fmt.Fprintf(to, "Warning: agents may still read what earlier --copy flags named, if there were any: %v\n", err)
		return nil
	}
	for _, each := range rights {
		same := func(other *unstructured.Unstructured) bool {
			return other.GetKind() == each.GetKind() && other.GetNamespace() == each.GetNamespace() && other.GetName() == each.GetName()
		}
		if !slices.ContainsFunc(wanted, same) {
			remove := strings.TrimSuffix("kubectl delete "+strings.ToLower(each.GetKind())+" "+each.GetName()+" -n "+each.GetNamespace(), " -n ")
			fmt.Fprintf(to, "Warning: agents may still read what earlier --copy flags named; without need: %s\n", remove)
		}
	}
	return err
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
	conditions, _, _ := unstructured.NestedSlice(definition.Object, "status", "conditions")
	return slices.ContainsFunc(conditions, func(each any) bool {
		fields, _ := each.(map[string]any)
		return fields["type"] == "Established" && fields["status"] == "True"
	})
}

// NewerFields returns the versions and fields of an existing CustomResourceDefinition that the manifest lacks, sorted, as
// <version>.<path>; none of other kinds. It omits what is below them. After an apply of the manifest, the API server
// would prune them from objects.
func NewerFields(existing, manifest *unstructured.Unstructured) []string {
	if manifest.GetKind() != "CustomResourceDefinition" {
		return nil
	}
	known, unknown := definedFields(manifest), definedFields(existing)
	maps.DeleteFunc(unknown, func(field string, _ bool) bool { return known[field] })
	var newer []string
	for _, field := range slices.Sorted(maps.Keys(unknown)) {
		below := func(parent string) bool {
			return strings.HasPrefix(field, parent+".") || strings.HasPrefix(field, parent+"[]")
		}
		if !slices.ContainsFunc(newer, below) {
			newer = append(newer, field)
		}
	}
	return newer
}

// definedFields returns the versions of a CustomResourceDefinition, and the fields of each version's schema.
func definedFields(definition *unstructured.Unstructured) map[string]bool {
	fields := map[string]bool{}
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, each := range versions {
		version, _ := each.(map[string]any)
		name, _ := version["name"].(string)
		fields[name] = true
		schema, _, _ := unstructured.NestedMap(version, "schema", "openAPIV3Schema")
		addFields(fields, name, schema)
	}
	return fields
}

// addFields adds the properties of a schema, of its array items, and of its map values.
func addFields(fields map[string]bool, path string, schema map[string]any) {
	properties, _ := schema["properties"].(map[string]any)
	for name, property := range properties {
		fields[path+"."+name] = true
		nested, _ := property.(map[string]any)
		addFields(fields, path+"."+name, nested)
	}
	for _, each := range []string{"items", "additionalProperties"} {
		if nested, ok := schema[each].(map[string]any); ok {
			addFields(fields, path+"[]", nested)
		}
	}
}

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
