package adopt

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/cmd/lateen/cluster"
	"github.com/lateen-project/lateen/deploy"
)

func (o options) validateMovers() error {
	if o.undo && (o.movers.Account || len(o.movers.Secrets) > 0 || o.podPolicy != "") {
		return errors.New("--undo removes the ServiceAccount of movers and the policies: remove --restrict-movers, --mover-secrets and --pod-policy")
	}
	return cluster.ValidateMovers(o.movers, o.podPolicy)
}

// restrict returns the objects that restrict movers and agents. For --undo, it returns those of every adoption.
func (a *adoption) restrict(ctx context.Context, agents *unstructured.Unstructured) ([]runtime.Object, error) {
	if a.undo {
		all := deploy.MoverAccess(a.Namespace, deploy.Movers{Account: true})
		return append(all, deploy.PodPolicies(deploy.PodPolicy{Namespace: a.Namespace})...), nil
	}
	wanted := deploy.MoverAccess(a.Namespace, a.movers)
	if a.podPolicy == "" {
		return wanted, nil
	}
	server, err := a.server(ctx)
	if err != nil {
		return nil, err
	}
	if server == nil {
		return nil, fmt.Errorf("find Velero's server for --pod-policy: namespace %s has no Deployment %s, and not exactly one other that runs velero server", a.Namespace, deploy.VeleroDeployment)
	}
	template, err := readTemplate(agents)
	if err != nil {
		return nil, err
	}
	return append(wanted, deploy.PodPolicies(deploy.PodPolicy{
		Namespace: a.Namespace, PodsDir: deploy.PodsDir(template), Mode: a.podPolicy, Movers: a.movers, Copies: a.copies,
		Inherited: deploy.InheritedFrom(server.Spec.Template.Spec, template.Spec),
	})...), nil
}

// moversRemain reports whether pods run with the ServiceAccount of movers. Without it, they could not write their results.
func (a *adoption) moversRemain(ctx context.Context) (bool, error) {
	list, err := a.Kube.CoreV1().Pods(a.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list movers: %w", err)
	}
	for _, pod := range list.Items {
		if pod.Spec.ServiceAccountName == deploy.MoverAccountName && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			fmt.Fprintf(a.warnings, "Warning: ServiceAccount, Role and RoleBinding %[1]s remain, because movers run with them; when these have ended: kubectl -n %[2]s delete serviceaccount,role,rolebinding %[1]s\n",
				deploy.MoverAccountName, a.Namespace)
			return true, nil
		}
	}
	return false, nil
}
