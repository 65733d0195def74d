package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/truncate"
)

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
	last := pods{wanted: -1}    // unknown
	done := false               // but for nodes that are not Ready
	var unready map[string]bool // nodes
	progress := NewProgress(c.Out)
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
		switch {
		case now == last:
		case now.wanted == 0 && needed:
			progress.Keepf("%s %s: %s", workload.GetKind(), name, c.whyNoNode(ctx, workload))
		default:
			progress.Printf("%s %s: %d of %d pods ready", workload.GetKind(), name, now.ready, now.wanted)
		}
		last, done = now, false
		if down := c.down(ctx, workload, &unready, now); len(down) > 0 {
			done = true
			progress.Keepf("%s %s: not waiting for nodes that are not Ready: %s", workload.GetKind(), name, truncate.Names(down, 5))
		}
	}, func() bool {
		return last.wanted >= 0 && (last.ready >= last.wanted || done) && (last.wanted > 0 || !needed)
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

// down returns the nodes that are not Ready if a DaemonSet is rolled out but for them: their pods follow when they are.
func (c *Client) down(ctx context.Context, agents *unstructured.Unstructured, unready *map[string]bool, now pods) []string {
	const few = 3 // a large cluster is not read at each step
	missing := int(now.wanted - now.ready)
	if missing <= 0 || agents.GetKind() != "DaemonSet" {
		return nil
	}
	if *unready == nil || missing <= max(few, len(*unready)) {
		nodes, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil // they count as missing
		}
		*unready = UnreadyNodes(nodes.Items)
	}
	if len(*unready) < missing {
		return nil
	}
	selected, _, _ := unstructured.NestedStringMap(agents.Object, "spec", "selector", "matchLabels")
	ready, names, err := c.RolledOut(ctx, agents, labels.Set(selected).String(), *unready)
	if err != nil || ready+len(names) < int(now.wanted) {
		return nil
	}
	return names
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

// generationLabel is on the pods of a DaemonSet: the generation of their template (extensions/v1beta1.DaemonSetTemplateGenerationKey).
const generationLabel = "pod-template-generation"

// IsCurrent reports whether a pod of a DaemonSet is of its current template.
func IsCurrent(pod *corev1.Pod, agents metav1.Object) bool {
	return pod.Labels[generationLabel] == agents.GetAnnotations()[appsv1.DeprecatedTemplateGeneration]
}

// RolledOut counts the pods of a DaemonSet, by its selector, that are ready and of its current template. Those on unready nodes do not
// count; it returns the names of these nodes.
func (c *Client) RolledOut(ctx context.Context, agents metav1.Object, selector string, unready map[string]bool) (ready int, down []string, err error) {
	pods, err := c.Kube.CoreV1().Pods(c.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return 0, nil, err
	}
	for _, pod := range pods.Items {
		isReady := slices.ContainsFunc(pod.Status.Conditions, func(condition corev1.PodCondition) bool {
			return condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue
		})
		switch {
		case unready[pod.Spec.NodeName]:
			down = append(down, pod.Spec.NodeName)
		case isReady && pod.DeletionTimestamp == nil && IsCurrent(&pod, agents):
			ready++
		}
	}
	slices.Sort(down)
	return ready, slices.Compact(down), nil
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
		updated := number("status", "updatedReplicas")
		replaced := max(number("status", "replicas")-updated, 0) // they may be the available ones
		return pods{ready: min(updated, number("status", "availableReplicas")-replaced), wanted: number("spec", "replicas")}
	}
	return pods{ready: min(number("status", "updatedNumberScheduled"), number("status", "numberAvailable")), wanted: number("status", "desiredNumberScheduled")}
}
