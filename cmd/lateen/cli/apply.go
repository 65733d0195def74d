package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
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
	"github.com/lateen-project/lateen/exposer/truncate"
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
	patch, err := csaupgrade.UpgradeManagedFieldsPatch(existing, sets.New(FieldManager), FieldManager)
	if err != nil || patch == nil {
		return err
	}
	_, err = c.Resource(existing).Patch(ctx, existing.GetName(), types.JSONPatchType, patch, metav1.PatchOptions{FieldManager: FieldManager})
	return err
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

// DiagnoseTimeout bounds the diagnosis of an object that is not ready or still exists after the timeout.
const DiagnoseTimeout = 5 * time.Second

// UntilReady waits for the server and the agents' DaemonSets, and prints the number of their ready pods.
func (c *Client) UntilReady(ctx context.Context, agents ...string) error {
	if err := c.rollout(ctx, "deployments", api.VeleroDeployment, false); err != nil {
		return err
	}
	for _, name := range agents {
		if err := c.agentsReady(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// agentsReady waits until the DaemonSet has a node and every agent is ready. Only a cluster without Windows nodes
// needs no agent on Windows.
func (c *Client) agentsReady(ctx context.Context, name string) error {
	if name == api.WindowsDaemonSetName {
		windows, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: corev1.LabelOSStable + "=" + string(corev1.Windows), Limit: 1})
		if err != nil {
			return fmt.Errorf("wait for DaemonSet %s: list nodes: %w", name, err)
		}
		if len(windows.Items) == 0 {
			_, err := fmt.Fprintf(c.Out, "DaemonSet %s: no Windows node in the cluster, nothing to wait for\n", name)
			return err
		}
	}
	return c.rollout(ctx, "daemonsets", name, true)
}

// pods counts the ready and the desired pods of a workload.
type pods struct{ ready, wanted int64 }

// DaemonSetRollout waits until all pods of a DaemonSet are updated and ready. The DaemonSet may have no node.
func (c *Client) DaemonSetRollout(ctx context.Context, name string) error {
	return c.rollout(ctx, "daemonsets", name, false)
}

// rollout waits until the desired pods of a workload are ready, and at least one if it is needed, and prints every change of
// their number. Its error says what keeps them off the nodes.
func (c *Client) rollout(ctx context.Context, resource, name string, needed bool) error {
	last, down := pods{wanted: -1}, 0 // unknown
	var unready map[string]bool       // nodes
	var agents *unstructured.Unstructured
	var behind int64 // the generation that its controller has not observed, or 0
	workloads := c.Dynamic.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}).Namespace(c.Namespace)
	err := Follow(ctx, workloads, metav1.ListOptions{FieldSelector: "metadata.name=" + name}, func(event watch.EventType, workload *unstructured.Unstructured) {
		observed, _, _ := unstructured.NestedInt64(workload.Object, "status", "observedGeneration")
		behind = 0
		if event == watch.Deleted {
			return
		}
		if observed < workload.GetGeneration() {
			behind = workload.GetGeneration()
			return
		}
		agents = workload
		now := podsOf(workload)
		if now == last {
			return
		}
		last = now
		if now.wanted == 0 && needed {
			fmt.Fprintf(c.Out, "%s %s: %s\n", workload.GetKind(), name, c.whyNoNode(ctx, workload))
			return
		}
		fmt.Fprintf(c.Out, "%s %s: %d of %d pods ready\n", workload.GetKind(), name, now.ready, now.wanted)
		down = c.down(ctx, workload, &unready, int(now.wanted-now.ready))
	}, func() bool {
		return last.wanted >= 0 && last.ready+int64(down) >= last.wanted && (last.wanted > 0 || !needed)
	})
	if err == nil {
		return nil
	}
	remedy := fmt.Sprintf("see kubectl -n %s describe pods", c.Namespace)
	if behind > 0 {
		remedy = fmt.Sprintf("its controller has not observed generation %d: check kube-controller-manager", behind)
	}
	if last.wanted == 0 && needed && !errors.Is(err, context.Canceled) {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), DiagnoseTimeout)
		defer cancel()
		remedy = c.whyNoNode(asking, agents)
	}
	return fmt.Errorf("wait for %s %s: %w; %s", resource, name, err, remedy)
}

// down returns how many of the missing pods of a DaemonSet are those of nodes that are not Ready, and follow when these are. It prints
// their nodes if that is all of them.
func (c *Client) down(ctx context.Context, agents *unstructured.Unstructured, unready *map[string]bool, missing int) int {
	if missing <= 0 || agents.GetKind() != "DaemonSet" {
		return 0
	}
	if *unready == nil {
		nodes, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return 0 // they count as missing
		}
		*unready = UnreadyNodes(nodes.Items)
	}
	if len(*unready) < missing {
		return 0
	}
	selected, _, _ := unstructured.NestedStringMap(agents.Object, "spec", "selector", "matchLabels")
	names, err := c.AgentsDown(ctx, labels.Set(selected).String(), *unready)
	if err != nil || len(names) < missing {
		return 0
	}
	fmt.Fprintf(c.Out, "%s %s: not waiting for nodes that are not Ready: %s\n", agents.GetKind(), agents.GetName(), truncate.Names(names, 5))
	return len(names)
}

// UnreadyNodes returns the names of the nodes that are not Ready.
func UnreadyNodes(nodes []corev1.Node) map[string]bool {
	unready := map[string]bool{}
	for _, node := range nodes {
		isReady := slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
			return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
		})
		if !isReady {
			unready[node.Name] = true
		}
	}
	return unready
}

// AgentsDown returns those of the nodes whose pod of a selector is not ready.
func (c *Client) AgentsDown(ctx context.Context, selector string, nodes map[string]bool) (names []string, err error) {
	pods, err := c.Kube.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	for _, pod := range pods.Items {
		isReady := slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
			return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
		})
		if !isReady && nodes[pod.Spec.NodeName] {
			names = append(names, pod.Spec.NodeName)
		}
	}
	return names, nil
}

// whyNoNode describes what keeps the pods of a DaemonSet off each node.
func (c *Client) whyNoNode(ctx context.Context, agents *unstructured.Unstructured) string {
	const none = "no node is eligible for its pods: "
	fields, _, _ := unstructured.NestedMap(agents.Object, "spec", "template", "spec")
	var pod corev1.PodSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &pod); err != nil {
		return none + err.Error()
	}
	nodes, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return none + "cannot list nodes: " + err.Error()
	}
	return none + formatBlockers(pod, nodes.Items)
}

func podsOf(workload *unstructured.Unstructured) pods {
	number := func(path ...string) int64 {
		n, _, _ := unstructured.NestedInt64(workload.Object, path...)
		return n
	}
	if workload.GetKind() == "Deployment" {
		return pods{ready: min(number("status", "updatedReplicas"), number("status", "availableReplicas")), wanted: number("spec", "replicas")}
	}
	return pods{ready: min(number("status", "updatedNumberScheduled"), number("status", "numberAvailable")), wanted: number("status", "desiredNumberScheduled")}
}
