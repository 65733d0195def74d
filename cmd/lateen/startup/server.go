package startup

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/exposer/api"
)

// ServerOf returns Velero's server among Deployments of its namespace: the one of this name if it runs the server, else the
// one with the usual name, else the only one that runs the server; nil without one.
func ServerOf(name string, deployments []appsv1.Deployment) *appsv1.Deployment {
	servers := slices.DeleteFunc(slices.Clone(deployments), func(d appsv1.Deployment) bool {
		return d.Name != api.VeleroDeployment && !slices.ContainsFunc(d.Spec.Template.Spec.Containers, api.RunsServer)
	})
	for _, wanted := range []string{name, api.VeleroDeployment} {
		if at := slices.IndexFunc(servers, func(d appsv1.Deployment) bool { return d.Name == wanted }); at >= 0 {
			return &servers[at]
		}
	}
	if len(servers) == 1 {
		return &servers[0]
	}
	return nil
}

// ReadServer finds Velero's server as ServerOf does. It reads the Deployments by name first: the agents' Role names them.
func ReadServer(ctx context.Context, client kubernetes.Interface, namespace, name string) (*appsv1.Deployment, error) {
	deployments := client.AppsV1().Deployments(namespace)
	return findServer(name, func(name string) (*appsv1.Deployment, error) {
		found, err := deployments.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		if err != nil {
			return nil, fmt.Errorf("get deployment %s/%s: %w", namespace, name, err)
		}
		return found, nil
	}, func() (*appsv1.DeploymentList, error) { return deployments.List(ctx, metav1.ListOptions{}) })
}

// findServer finds Velero's server with these requests; get returns nil for a Deployment that does not exist.
func findServer(name string, get func(name string) (*appsv1.Deployment, error), list func() (*appsv1.DeploymentList, error)) (*appsv1.Deployment, error) {
	for _, wanted := range slices.Compact([]string{cmp.Or(name, api.VeleroDeployment), api.VeleroDeployment}) {
		found, err := get(wanted)
		if err != nil {
			return nil, err
		}
		if found == nil {
			continue
		}
		if server := ServerOf(wanted, []appsv1.Deployment{*found}); server != nil {
			return server, nil
		}
	}
	all, err := list()
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list deployments to find Velero's server: %w", err)
	}
	return ServerOf(name, all.Items), nil
}

// server returns Velero's server within the budget; nil without one.
func (l loader) server(ctx context.Context) (*appsv1.Deployment, error) {
	return findServer(ServerName(l.options.MoverTemplate), func(name string) (*appsv1.Deployment, error) { return l.deployment(ctx, name) },
		func() (all *appsv1.DeploymentList, err error) {
			err = l.budget.retry(ctx, func(ctx context.Context) (err error) {
				all, err = l.client.AppsV1().Deployments(l.options.Namespace).List(ctx, metav1.ListOptions{})
				return err
			})
			return all, err
		})
}

// ServerName returns the Deployment that a --mover-template names, which often is Velero's server; empty for none.
func ServerName(moverTemplate string) string {
	name, ok := strings.CutPrefix(moverTemplate, templateDeployment)
	if !ok {
		return ""
	}
	return name
}
