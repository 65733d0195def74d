package main

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/deploy"
)

// untilReady waits for the server and the agents' DaemonSets, and prints the number of their ready pods.
func (i *installer) untilReady(ctx context.Context, agents ...string) error {
	if err := i.rollout(ctx, "deployments", deploy.VeleroDeployment, deploymentPods); err != nil {
		return err
	}
	for _, name := range agents {
		if err := i.agentsReady(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// agentsReady waits until the DaemonSet has a node and every agent is ready. Only a cluster without Windows nodes
// needs no agent on Windows.
func (i *installer) agentsReady(ctx context.Context, name string) error {
	if name == deploy.WindowsDaemonSetName {
		windows, err := i.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: corev1.LabelOSStable + "=" + string(corev1.Windows), Limit: 1})
		if err != nil {
			return fmt.Errorf("wait for DaemonSet %s: list nodes: %w", name, err)
		}
		if len(windows.Items) == 0 {
			_, err := fmt.Fprintf(i.out, "DaemonSet %s: no Windows node in the cluster, nothing to wait for\n", name)
			return err
		}
	}
	return i.rollout(ctx, "daemonsets", name, agentPods)
}

// pods counts the ready and the desired pods of a workload.
type pods struct {
	ready, wanted int64
	needed        bool // zero desired pods do not count as complete
}

func (p pods) complete() bool { return p.ready >= p.wanted && (p.wanted > 0 || !p.needed) }

func (i *installer) rollout(ctx context.Context, resource, name string, count func(*unstructured.Unstructured) pods) error {
	last := pods{wanted: -1} // unknown
	var agents *unstructured.Unstructured
	workloads := i.dynamic.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}).Namespace(i.namespace)
	err := follow(ctx, workloads, metav1.ListOptions{FieldSelector: "metadata.name=" + name}, func(event watch.EventType, workload *unstructured.Unstructured) {
		observed, _, _ := unstructured.NestedInt64(workload.Object, "status", "observedGeneration")
		if event == watch.Deleted || observed < workload.GetGeneration() {
			return
		}
		agents = workload
		now := count(workload)
		if now == last {
			return
		}
		last = now
		if now.wanted == 0 && now.needed {
			fmt.Fprintf(i.out, "%s %s: %s\n", workload.GetKind(), name, i.whyNoNode(ctx, workload))
			return
		}
		fmt.Fprintf(i.out, "%s %s: %d of %d pods ready\n", workload.GetKind(), name, now.ready, now.wanted)
	}, func() bool { return last.wanted >= 0 && last.complete() })
	if err == nil {
		return nil
	}
	remedy := fmt.Sprintf("see kubectl -n %s describe pods", i.namespace)
	if last.wanted == 0 && last.needed && !errors.Is(err, context.Canceled) {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), diagnoseTimeout)
		defer cancel()
		remedy = i.whyNoNode(asking, agents)
	}
	return fmt.Errorf("wait for %s %s: %w; %s", resource, name, err, remedy)
}

// whyNoNode describes what keeps the pods of a DaemonSet off each node.
func (i *installer) whyNoNode(ctx context.Context, agents *unstructured.Unstructured) string {
	const none = "no node is eligible for its pods: "
	fields, _, _ := unstructured.NestedMap(agents.Object, "spec", "template", "spec")
	var pod corev1.PodSpec
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, &pod); err != nil {
		return none + err.Error()
	}
	nodes, err := i.kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return none + "cannot list nodes: " + err.Error()
	}
	return none + formatObstacles(pod, nodes.Items)
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
