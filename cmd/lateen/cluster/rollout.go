package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/deploy"
)

// DiagnoseTimeout bounds the diagnosis of an object that is not ready or still exists after the timeout.
const DiagnoseTimeout = 5 * time.Second

// UntilReady waits for the server and the agents' DaemonSets, and prints the number of their ready pods.
func (c *Client) UntilReady(ctx context.Context, agents ...string) error {
	if err := c.rollout(ctx, "deployments", deploy.VeleroDeployment, deploymentPods); err != nil {
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
	if name == deploy.WindowsDaemonSetName {
		windows, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: corev1.LabelOSStable + "=" + string(corev1.Windows), Limit: 1})
		if err != nil {
			return fmt.Errorf("wait for DaemonSet %s: list nodes: %w", name, err)
		}
		if len(windows.Items) == 0 {
			_, err := fmt.Fprintf(c.Out, "DaemonSet %s: no Windows node in the cluster, nothing to wait for\n", name)
			return err
		}
	}
	return c.rollout(ctx, "daemonsets", name, agentPods)
}

// pods counts the ready and the desired pods of a workload.
type pods struct {
	ready, wanted int64
	needed        bool // zero desired pods do not count as complete
}

func (p pods) complete() bool { return p.ready >= p.wanted && (p.wanted > 0 || !p.needed) }

// DaemonSetRollout waits until all pods of a DaemonSet are updated and ready. The DaemonSet may have no node.
func (c *Client) DaemonSetRollout(ctx context.Context, name string) error {
	return c.rollout(ctx, "daemonsets", name, daemonSetPods)
}

// rollout waits until the counted pods of a workload are complete, and prints every change of their number. Its error says
// what keeps them off the nodes.
func (c *Client) rollout(ctx context.Context, resource, name string, count func(*unstructured.Unstructured) pods) error {
	last := pods{wanted: -1} // unknown
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
		now := count(workload)
		if now == last {
			return
		}
		last = now
		if now.wanted == 0 && now.needed {
			fmt.Fprintf(c.Out, "%s %s: %s\n", workload.GetKind(), name, c.whyNoNode(ctx, workload))
			return
		}
		fmt.Fprintf(c.Out, "%s %s: %d of %d pods ready\n", workload.GetKind(), name, now.ready, now.wanted)
	}, func() bool { return last.wanted >= 0 && last.complete() })
	if err == nil {
		return nil
	}
	remedy := fmt.Sprintf("see kubectl -n %s describe pods", c.Namespace)
	if behind > 0 {
		remedy = fmt.Sprintf("its controller has not observed generation %d: check kube-controller-manager", behind)
	}
	if last.wanted == 0 && last.needed && !errors.Is(err, context.Canceled) {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), DiagnoseTimeout)
		defer cancel()
		remedy = c.whyNoNode(asking, agents)
	}
	return fmt.Errorf("wait for %s %s: %w; %s", resource, name, err, remedy)
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

func deploymentPods(workload *unstructured.Unstructured) pods {
	wanted, _, _ := unstructured.NestedInt64(workload.Object, "spec", "replicas")
	updated, _, _ := unstructured.NestedInt64(workload.Object, "status", "updatedReplicas")
	available, _, _ := unstructured.NestedInt64(workload.Object, "status", "availableReplicas")
	return pods{ready: min(updated, available), wanted: wanted}
}

func daemonSetPods(workload *unstructured.Unstructured) pods {
	wanted, _, _ := unstructured.NestedInt64(workload.Object, "status", "desiredNumberScheduled")
	updated, _, _ := unstructured.NestedInt64(workload.Object, "status", "updatedNumberScheduled")
	available, _, _ := unstructured.NestedInt64(workload.Object, "status", "numberAvailable")
	return pods{ready: min(updated, available), wanted: wanted}
}

// agentPods counts the pods of a DaemonSet that needs at least one.
func agentPods(workload *unstructured.Unstructured) pods {
	counted := daemonSetPods(workload)
	counted.needed = true
	return counted
}
