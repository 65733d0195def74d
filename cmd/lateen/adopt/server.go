package adopt

import (
	"context"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
)

// server returns Velero's Deployment: the one with the usual name, else the only one that runs Velero's server. It is
// nil without one.
func (a *adoption) server(ctx context.Context) (*appsv1.Deployment, error) {
	deployments := a.Kube.AppsV1().Deployments(a.Namespace)
	usual, err := deployments.Get(ctx, deploy.VeleroDeployment, metav1.GetOptions{})
	if err == nil || !apierrors.IsNotFound(err) {
		return usual, err
	}
	list, err := deployments.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("find Velero's server: %w", err)
	}
	var found []*appsv1.Deployment
	for index := range list.Items {
		if slices.ContainsFunc(list.Items[index].Spec.Template.Spec.Containers, deploy.RunsServer) {
			found = append(found, &list.Items[index])
		}
	}
	if len(found) != 1 {
		return nil, nil
	}
	return found[0], nil
}

// serverArgs returns the arguments that replace Velero's Deployment if it does not have the usual name. They set the
// image and ServiceAccount of movers, as in Velero's agents, and the ConfigMap of maintenance jobs. With --restrict-movers,
// they always set the ServiceAccount.
func (a *adoption) serverArgs(ctx context.Context, velero corev1.PodTemplateSpec) ([]string, error) {
	server, err := a.server(ctx)
	if err != nil {
		return nil, err
	}
	maintenance := ""
	if server != nil {
		maintenance, _ = config.MaintenanceConfigMap("", &server.Spec.Template)
	}
	if maintenance != "" {
		a.maintenance = fmt.Sprintf("Maintenance jobs use ConfigMap %s, named by Deployment %s.", maintenance, server.Name)
	}
	var args []string
	if a.movers.Account {
		args = append(args, deploy.MoverAccountFlag+"="+deploy.MoverAccountName)
	}
	if server != nil && server.Name == deploy.VeleroDeployment || len(velero.Spec.Containers) == 0 {
		return args, nil
	}
	args = append(args, "--mover-image="+velero.Spec.Containers[0].Image)
	if !a.movers.Account {
		args = append(args, deploy.MoverAccountFlag+"="+velero.Spec.ServiceAccountName)
	}
	if maintenance != "" {
		args = append(args, "--repo-maintenance-job-configmap="+maintenance)
	}
	return args, nil
}
