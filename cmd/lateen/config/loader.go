package config

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

type loader struct {
	client    kubernetes.Interface
	options   Options
	budget    budget
	workloads map[workload]*corev1.PodTemplateSpec // the workloads read so far; nil for a missing one
	agents    *int                                 // sums up what their DaemonSets want
}

// get reads one object within the budget; nil if it does not exist.
func get[T any](ctx context.Context, l loader, what object, read func(ctx context.Context, name string, options metav1.GetOptions) (*T, error)) (*T, error) {
	var found *T
	err := l.budget.retry(ctx, func(ctx context.Context) (err error) {
		found, err = read(ctx, what.name, metav1.GetOptions{})
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, what.explain(err, l.options.StartupTimeout)
	}
	return found, nil
}

func (l loader) nodeObject() object { return object{resource: "nodes", name: l.options.NodeName} }

// configMap reads a ConfigMap in Velero's namespace; nil if it does not exist.
func (l loader) configMap(ctx context.Context, name string) (object, *corev1.ConfigMap, error) {
	what := object{resource: "configmaps", namespace: l.options.Namespace, name: name}
	found, err := get(ctx, l, what, l.client.CoreV1().ConfigMaps(what.namespace).Get)
	return what, found, err
}

// workload is a DaemonSet or Deployment in Velero's namespace.
type workload struct {
	resource string // daemonSets or deployments
	name     string
}
