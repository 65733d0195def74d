// Package uninstall is `lateen uninstall`: it removes the objects that lateen install created, in the order that lets
// controllers remove their finalizers. It never removes a finalizer itself.
package uninstall

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"

	"github.com/lateen-project/lateen/cmd/lateen/adopt"
	"github.com/lateen-project/lateen/cmd/lateen/cli"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/truncate"
)

// NewCommand returns `lateen uninstall`. The user agent is that of all its requests.
func NewCommand(userAgent string) *cobra.Command {
	flags := cli.Flags{UserAgent: userAgent}
	var force bool
	var timeout time.Duration
	command := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the objects that lateen install created",
		Example: "  lateen uninstall\n" +
			"  lateen uninstall -n velero --force",
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			client, err := flags.Connect(command.OutOrStdout())
			if err != nil {
				return err
			}
			prompt := cli.Prompt{In: command.InOrStdin(), Out: command.OutOrStdout(), Force: force}
			return (&removal{client}).run(command.Context(), prompt, timeout)
		},
	}
	flags.Add(command.Flags())
	command.Flags().BoolVar(&force, "force", false, "do not ask for confirmation")
	command.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long the removal may take, after confirmation")
	return command
}

const rbacGroup = "rbac.authorization.k8s.io"

// installedResources returns the resources of `lateen install` in the order of their removal. Workloads come first.
// The custom resources go even earlier, because only the workloads remove their finalizers.
func installedResources() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		{Group: "apps", Version: "v1", Resource: "daemonsets"},
		{Group: "apps", Version: "v1", Resource: "deployments"},
		{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
		{Group: "velero.io", Version: "v1", Resource: "volumesnapshotlocations"},
		{Group: "velero.io", Version: "v1", Resource: "backupstoragelocations"},
		{Version: "v1", Resource: "configmaps"},
		{Version: "v1", Resource: "secrets"},
		{Group: rbacGroup, Version: "v1", Resource: "rolebindings"},
		{Group: rbacGroup, Version: "v1", Resource: "roles"},
		{Group: rbacGroup, Version: "v1", Resource: "clusterrolebindings"},
		{Group: rbacGroup, Version: "v1", Resource: "clusterroles"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
		{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "flowschemas"},
		{Group: "flowcontrol.apiserver.k8s.io", Version: "v1", Resource: "prioritylevelconfigurations"},
		{Version: "v1", Resource: "serviceaccounts"},
		{Version: "v1", Resource: "namespaces"},
	}
}

// deletesNamespace lists the consequences of deleting the namespace. Velero's server deletes the data of a Restore in
// the bucket before it removes the finalizer of the Restore, and uninstall waits for that. A Backup has no finalizer.
const deletesNamespace = `Deleting the namespace deletes everything in it:
- Backups stay in the backup storage. Logs and results of Restores do not: while it runs, Velero's server deletes them with
  each deleted Restore.
- Secret velero-repo-credentials has the password of the repositories. If it is not Velero's default, the repositories
  cannot be read without it: keep a copy (kubectl get secret velero-repo-credentials -o yaml).
`

// removal is one run of the command.
type removal struct{ *cli.Client }

// run lists the installed objects, asks for a confirmation and removes them.
func (r *removal) run(ctx context.Context, prompt cli.Prompt, timeout time.Duration) error {
	if err := adopt.Reject(ctx, r.Client); err != nil {
		return err
	}
	var found []unstructured.Unstructured
	for _, resource := range append(installedResources(), cli.Definitions()) {
		objects, err := r.Installed(ctx, resource)
		if err != nil {
			return err
		}
		found = append(found, objects...)
	}
	if len(found) == 0 {
		return fmt.Errorf("find objects of lateen install for namespace %s: no object has label %s=%s", r.Namespace, api.LabelInstalled, r.Namespace)
	}
	for index := range found {
		fmt.Fprintf(r.Out, "%s %s\n", found[index].GetKind(), found[index].GetName())
	}
	fmt.Fprintf(r.Out, "lateen install created these %d objects.\n", len(found))
	if slices.ContainsFunc(found, isNamespace) {
		fmt.Fprint(r.Out, deletesNamespace)
	}
	if err := r.warnOfMovers(ctx); err != nil {
		return err
	}
	if err := prompt.Confirm(ctx, "Remove them?"); err != nil {
		return fmt.Errorf("uninstall %s: %w, nothing removed", r.Namespace, err)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return r.removeAll(ctx, found)
}

// warnOfMovers prints how many movers run, since they lose their rights.
func (r *removal) warnOfMovers(ctx context.Context) error {
	movers, err := r.Dynamic.Resource(corev1.SchemeGroupVersion.WithResource("pods")).Namespace(r.Namespace).List(ctx,
		metav1.ListOptions{LabelSelector: api.LabelMover + "=true", FieldSelector: "status.phase=" + string(corev1.PodRunning)})
	if err != nil {
		return fmt.Errorf("list movers: %w", err)
	}
	if count := len(movers.Items); count > 0 {
		fmt.Fprintf(r.Out, "Running movers: %d. They lose the right to report, and their transfers fail: lateen status shows them.\n", count)
	}
	return nil
}

func isNamespace(object unstructured.Unstructured) bool { return object.GetKind() == "Namespace" }

func isDeployment(object unstructured.Unstructured) bool { return object.GetKind() == "Deployment" }

func isDefinition(object unstructured.Unstructured) bool {
	return object.GetKind() == "CustomResourceDefinition"
}

func (r *removal) removeAll(ctx context.Context, found []unstructured.Unstructured) error {
	if slices.ContainsFunc(found, isNamespace) {
		finalized := allFinalized()
		if err := r.removeFinalized(ctx, finalized[:1]); err != nil {
			return err
		}
		if server := slices.IndexFunc(found, isDeployment); server >= 0 { // Velero's, which would create more transfers
			if err := r.remove(ctx, &found[server]); err != nil {
				return err
			}
			found = slices.Delete(found, server, server+1)
		}
		if err := r.removeFinalized(ctx, finalized[1:]); err != nil {
			return err
		}
	} else if err := r.reportHeld(ctx); err != nil {
		return err
	}
	definitions := slices.IndexFunc(found, isDefinition) // the last ones
	if definitions < 0 {
		definitions = len(found)
	}
	if err := r.removeEach(ctx, found[:definitions]); err != nil {
		return err
	}
	user, err := r.definitionsUser(ctx, found[definitions:])
	if err != nil {
		return err
	}
	if user != "" {
		fmt.Fprintf(r.Out, "CustomResourceDefinitions kept: %s\n", user)
		return nil
	}
	return r.removeEach(ctx, found[definitions:])
}

func (r *removal) removeEach(ctx context.Context, objects []unstructured.Unstructured) error {
	for index := range objects {
		if err := r.remove(ctx, &objects[index]); err != nil {
			return err
		}
	}
	return nil
}

// definitionsUser returns what still needs the definitions; "" if nothing does. A Velero of another namespace needs all of them,
// also those of which it has no resource now.
func (r *removal) definitionsUser(ctx context.Context, definitions []unstructured.Unstructured) (string, error) {
	for index := range definitions {
		if used, err := r.used(ctx, &definitions[index]); err != nil || used != "" {
			return used, err
		}
	}
	if len(definitions) == 0 {
		return "", nil
	}
	deployments, err := r.Kube.AppsV1().Deployments(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list Deployments: %w", err)
	}
	for _, other := range deployments.Items {
		if slices.ContainsFunc(other.Spec.Template.Spec.Containers, api.RunsServer) {
			return fmt.Sprintf("Deployment %s/%s runs Velero's server", other.Namespace, other.Name), nil
		}
	}
	return "", nil
}

// used returns a remaining custom resource of a definition, in any namespace; "" if there is none.
func (r *removal) used(ctx context.Context, definition *unstructured.Unstructured) (string, error) {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, version := range versions {
		fields, _ := version.(map[string]any)
		name, _ := fields["name"].(string)
		list, err := r.Dynamic.Resource(schema.GroupVersionResource{Group: group, Version: name, Resource: plural}).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return "", fmt.Errorf("list %s: %w", plural, err)
		}
		if len(list.Items) > 0 {
			return fmt.Sprintf("%s %s/%s still exists", plural, list.Items[0].GetNamespace(), list.Items[0].GetName()), nil
		}
	}
	return "", nil
}

// remove deletes the object with the displayed UID and waits until it is deleted.
func (r *removal) remove(ctx context.Context, object *unstructured.Unstructured) error {
	client, kind, name := r.Resource(object), object.GetKind(), object.GetName()
	propagation := metav1.DeletePropagationBackground
	if object.GroupVersionKind().Group == "apps" {
		propagation = metav1.DeletePropagationForeground // the pods are deleted before the workload
	}
	err := client.Delete(ctx, name, metav1.DeleteOptions{
		PropagationPolicy: &propagation,
		Preconditions:     &metav1.Preconditions{UID: new(object.GetUID())},
	})
	if err == nil {
		err = untilDeleted(ctx, client, metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	}
	if errors.Is(err, context.DeadlineExceeded) {
		asking, cancel := diagnosing(ctx)
		defer cancel()
		switch left, unread := client.Get(asking, name, metav1.GetOptions{}); {
		case unread == nil:
			err = fmt.Errorf("%w: %s", err, blockers(left))
		case apierrors.IsNotFound(unread):
			err = nil
		default:
			err = fmt.Errorf("%w: read what blocks it: %w", err, unread)
		}
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove %s %s: %w", kind, name, err)
	}
	_, err = fmt.Fprintf(r.Out, "%s %s removed\n", kind, name)
	return err
}

// diagnosing returns the context of a diagnosis after the time of the removal is up.
func diagnosing(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cli.DiagnoseTimeout)
}

// untilDeleted waits until no object is left.
func untilDeleted(ctx context.Context, client dynamic.ResourceInterface, options metav1.ListOptions) error {
	left := map[string]bool{}
	return cli.Follow(ctx, client, options, func(event watch.EventType, object *unstructured.Unstructured) {
		if left[object.GetName()] = true; event == watch.Deleted {
			delete(left, object.GetName())
		}
	}, func() bool { return len(left) == 0 })
}

// finalized is a custom resource of Velero with finalizers, and the workload whose pods remove them.
type finalized struct {
	schema.GroupVersionResource
	workloads schema.GroupVersionResource
	name      string // of the workload
	available string // the field of its status that counts its available pods
}

// allFinalized returns the resources with finalizers of Velero: first Restores
// (restores.velero.io/external-resources-finalizer), then the transfers.
func allFinalized() []finalized {
	deployments := appsv1.SchemeGroupVersion.WithResource("deployments")
	all := []finalized{{velerov1.SchemeGroupVersion.WithResource("restores"), deployments, api.VeleroDeployment, "availableReplicas"}}
	for _, kind := range api.Kinds() {
		all = append(all, finalized{kind.GVR(), cli.DaemonSets(), api.DaemonSetName, "numberAvailable"})
	}
	return all
}

// workload names the workload, such as "daemonsets node-agent".
func (f finalized) workload() string { return f.workloads.Resource + " " + f.name }

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

// removeFinalized deletes custom resources that would block the deletion of the namespace. It does so while the
// components that remove their finalizers still run. If such a component does not run, it returns an error instead of
// waiting.
func (r *removal) removeFinalized(ctx context.Context, resources []finalized) error {
	for _, each := range resources {
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
		if ready, err := r.ready(ctx, each); err != nil || ready == 0 {
			return r.blocked(each, held, fmt.Sprintf("no pod of %s is running to remove their finalizers", each.workload()), err)
		}
		fmt.Fprintf(r.Out, "%d %s wait for %s to remove their finalizers\n", len(held), each.Resource, each.workload())
		if err := untilDeleted(ctx, client, metav1.ListOptions{}); err != nil {
			asking, cancel := diagnosing(ctx)
			defer cancel()
			if left, unread := r.withFinalizers(asking, each); unread == nil {
				held = left
			}
			if len(held) == 0 && errors.Is(err, context.DeadlineExceeded) {
				continue
			}
			return r.blocked(each, held, "their finalizers were not removed", err)
		}
	}
	return nil
}

// ready returns the number of available pods of the workload; 0 if it does not exist.
func (r *removal) ready(ctx context.Context, f finalized) (int64, error) {
	found, err := r.Dynamic.Resource(f.workloads).Namespace(r.Namespace).Get(ctx, f.name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", f.workload(), err)
	}
	ready, _, _ := unstructured.NestedInt64(found.Object, "status", f.available)
	return ready, nil
}

// blocked returns the error with the objects, their finalizers and the two ways out.
func (r *removal) blocked(each finalized, held []unstructured.Unstructured, why string, cause error) error {
	const most = 5
	var names []string
	for index := range held {
		names = append(names, fmt.Sprintf("%s (%s)", held[index].GetName(), strings.Join(held[index].GetFinalizers(), ", ")))
	}
	err := fmt.Errorf("remove %d %s of namespace %s: %s: %s; start %s and uninstall again, or abandon their clean-up: kubectl -n %s patch %s NAME --type=merge -p '{\"metadata\":{\"finalizers\":null}}'",
		len(held), each.Resource, r.Namespace, why, truncate.Names(names, most), each.workload(), r.Namespace, each.Resource)
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
			fmt.Fprintf(r.Out, "%d %s are kept with the namespace; only %s can remove their finalizers\n", len(held), each.Resource, each.workload())
		}
	}
	return nil
}

// blockers returns what blocks the deletion of an object: finalizers, and the conditions of the deletion of a namespace.
// The garbage collector removes its own finalizers when it has deleted or orphaned the dependents.
func blockers(object *unstructured.Unstructured) string {
	var found []string
	for _, finalizer := range object.GetFinalizers() {
		if finalizer == metav1.FinalizerDeleteDependents || finalizer == metav1.FinalizerOrphanDependents {
			found = append(found, "Kubernetes still deletes or orphans its dependents")
		} else {
			found = append(found, "finalizer "+finalizer)
		}
	}
	if isNamespace(*object) {
		found = append(found, deletionConditions(object)...)
	}
	if len(found) == 0 {
		return "no finalizer or condition shows what blocks it; uninstall again"
	}
	return strings.Join(found, "; ") + "; uninstall again once this is resolved"
}

// deletionConditions returns the messages of the conditions with which Kubernetes explains the remaining content of a namespace.
func deletionConditions(namespace *unstructured.Unstructured) (messages []string) {
	explaining := []corev1.NamespaceConditionType{
		corev1.NamespaceDeletionDiscoveryFailure, corev1.NamespaceDeletionGVParsingFailure, corev1.NamespaceDeletionContentFailure,
		corev1.NamespaceContentRemaining, corev1.NamespaceFinalizersRemaining,
	}
	conditions, _, _ := unstructured.NestedSlice(namespace.Object, "status", "conditions")
	for _, each := range conditions {
		condition, _ := each.(map[string]any)
		kind, _ := condition["type"].(string)
		message, _ := condition["message"].(string)
		if condition["status"] == "True" && slices.Contains(explaining, corev1.NamespaceConditionType(kind)) {
			messages = append(messages, message)
		}
	}
	return messages
}
