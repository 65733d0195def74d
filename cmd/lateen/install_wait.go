package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/deploy"
)

// untilReady waits for the server and the DaemonSets of agents, and tells how far they are.
func (i *installer) untilReady(ctx context.Context, agents ...string) error {
	if err := i.rollout(ctx, "deployments", deploy.VeleroDeployment, deploymentPods); err != nil {
		return err
	}
	for _, name := range agents {
		if err := i.rollout(ctx, "daemonsets", name, daemonSetPods); err != nil {
			return err
		}
	}
	return nil
}

// pods are how many of a workload are ready, and how many there are to be.
type pods struct{ ready, wanted int64 }

func (i *installer) rollout(ctx context.Context, resource, name string, count func(*unstructured.Unstructured) pods) error {
	last := pods{wanted: -1} // not known yet
	workloads := i.dynamic.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: resource}).Namespace(i.namespace)
	err := follow(ctx, workloads, metav1.ListOptions{FieldSelector: "metadata.name=" + name}, func(event watch.EventType, workload *unstructured.Unstructured) {
		observed, _, _ := unstructured.NestedInt64(workload.Object, "status", "observedGeneration")
		if event == watch.Deleted || observed < workload.GetGeneration() {
			return
		}
		if now := count(workload); now != last {
			fmt.Fprintf(i.out, "%s %s: %d of %d pods ready\n", workload.GetKind(), name, now.ready, now.wanted)
			last = now
		}
	}, func() bool { return last.wanted >= 0 && last.ready >= last.wanted })
	if err != nil {
		return fmt.Errorf("wait for %s %s: %w; kubectl -n %s describe pods says what is in the way", resource, name, err, i.namespace)
	}
	return nil
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
