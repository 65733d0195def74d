package uninstall

import (
	"context"
	"fmt"
	"slices"
	"strings"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/truncate"
)

// finalized is a custom resource of Velero with finalizers, and the component that removes them.
type finalized struct {
	schema.GroupVersionResource
	server bool // removed by Velero's server; false: by the agents
}

// allFinalized returns the resources with finalizers of Velero: Restores
// (restores.velero.io/external-resources-finalizer) and the transfers.
func allFinalized() []finalized {
	all := []finalized{{velerov1.SchemeGroupVersion.WithResource("restores"), true}}
	for _, kind := range api.Kinds() {
		all = append(all, finalized{kind.GVR(), false})
	}
	return all
}

// workload returns the workload that removes the finalizers.
func (f finalized) workload() (resource, name string) {
	if f.server {
		return "deployments", deploy.VeleroDeployment
	}
	return "daemonsets", deploy.DaemonSetName
}

// withFinalizers lists the objects that have finalizers.
func (r *removal) withFinalizers(ctx context.Context, f finalized) ([]unstructured.Unstructured, error) {
	list, err := r.Dynamic.Resource(f.GroupVersionResource).Namespace(r.Namespace).List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil // the definition does not exist
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", f.Resource, err)
	}
	return slices.DeleteFunc(list.Items, func(object unstructured.Unstructured) bool { return len(object.GetFinalizers()) == 0 }), nil
}

// removeFinalized deletes the custom resources that would block the deletion of the namespace. It does so while the
// components that remove their finalizers still run. If such a component does not run, it returns an error instead of
// waiting.
func (r *removal) removeFinalized(ctx context.Context) error {
	for _, each := range allFinalized() {
		client := r.Dynamic.Resource(each.GroupVersionResource).Namespace(r.Namespace)
		err := client.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", each.Resource, err)
		}
		held, err := r.withFinalizers(ctx, each)
		if err != nil {
			return err
		}
		if len(held) == 0 {
			continue
		}
		resource, name := each.workload()
		if ready, err := r.ready(ctx, resource, name); err != nil || ready == 0 {
			return r.blocked(each, held, fmt.Sprintf("no pod of %s %s is running to remove their finalizers", resource, name), err)
		}
		fmt.Fprintf(r.Out, "%d %s wait for %s %s to remove their finalizers\n", len(held), each.Resource, resource, name)
		if err := untilDeleted(ctx, client, metav1.ListOptions{}); err != nil {
			return r.blocked(each, held, "their finalizers were not removed", err)
		}
	}
	return nil
}

// ready returns the number of available pods of a workload; 0 if the workload does not exist.
func (r *removal) ready(ctx context.Context, resource, name string) (int64, error) {
	workloads := r.Dynamic.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}).Namespace(r.Namespace)
	found, err := workloads.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read %s %s: %w", resource, name, err)
	}
	field := map[string]string{"deployments": "availableReplicas", "daemonsets": "numberAvailable"}[resource]
	ready, _, _ := unstructured.NestedInt64(found.Object, "status", field)
	return ready, nil
}

// blocked returns the error with the objects, their finalizers and the two ways out.
func (r *removal) blocked(each finalized, held []unstructured.Unstructured, why string, cause error) error {
	const most = 5
	var names []string
	for index := range held {
		names = append(names, fmt.Sprintf("%s (%s)", held[index].GetName(), strings.Join(held[index].GetFinalizers(), ", ")))
	}
	resource, name := each.workload()
	err := fmt.Errorf("remove %d %s of namespace %s: %s: %s; start %s %s and uninstall again, or abandon their clean-up: kubectl -n %s patch %s NAME --type=merge -p '{\"metadata\":{\"finalizers\":null}}'",
		len(held), each.Resource, r.Namespace, why, truncate.Names(names, most), resource, name, r.Namespace, each.Resource)
	if cause != nil {
		return fmt.Errorf("%w (%w)", err, cause)
	}
	return err
}

// reportHeld prints the remaining custom resources whose finalizers no component will remove.
func (r *removal) reportHeld(ctx context.Context) error {
	for _, each := range allFinalized() {
		held, err := r.withFinalizers(ctx, each)
		if err != nil {
			return err
		}
		if len(held) > 0 {
			resource, name := each.workload()
			fmt.Fprintf(r.Out, "%d %s are kept with the namespace; only %s %s can remove their finalizers\n", len(held), each.Resource, resource, name)
		}
	}
	return nil
}

// blockers returns what blocks the deletion of an object: its finalizers, or the remaining content of a namespace
// from its conditions.
func blockers(ctx context.Context, client dynamic.ResourceInterface, name string) string {
	object, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Sprintf("cannot read what blocks it: %v", err)
	}
	description := object.GetFinalizers()
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, each := range conditions {
		condition, _ := each.(map[string]any)
		message, _ := condition["message"].(string)
		if condition["status"] == "True" && message != "" {
			description = append(description, message)
		}
	}
	return "blocked by: " + strings.Join(description, "; ") + "; remove these and uninstall again"
}
