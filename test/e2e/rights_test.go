package e2e

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/rights"
	"github.com/lateen-project/lateen/test/testenv"
)

// restrict has movers use a ServiceAccount of their own, and agents create nothing but movers, as --restrict-movers and
// --pod-policy=restricted do.
func (s *served) restrict(t *testing.T) {
	t.Helper()
	movers := deploy.Movers{Account: true}
	require.NoError(t, testenv.Apply(s.ctx, s.Plane.Admin(), deploy.MoverAccess(s.Namespace, movers)...))
	server, err := s.Kube.AppsV1().Deployments(s.Namespace).Get(s.ctx, api.VeleroDeployment, metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, testenv.Apply(s.ctx, s.Plane.Admin(), deploy.PodPolicies(deploy.PodPolicy{
		Namespace: s.Namespace, PodsDir: filepath.Join(s.Dir, "kubelet", "pods"), Mode: deploy.PodPolicyRestricted, Movers: movers,
		Inherited: deploy.InheritedFrom(server.Spec.Template.Spec, corev1.PodSpec{}),
	})...))
	s.policiesAreInForce(t)
	s.flags = append(s.flags, deploy.MoverAccountFlag+"="+deploy.MoverAccountName)
}

// policiesAreInForce waits until the agents may not create a pod of their own choice.
func (s *served) policiesAreInForce(t *testing.T) {
	t.Helper()
	own, err := s.Account(s.ctx)
	require.NoError(t, err)
	agents, err := kubernetes.NewForConfig(own)
	require.NoError(t, err)
	other := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "other"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "other", Image: "other"}}},
	}
	require.NoError(t, wait.PollUntilContextCancel(s.ctx, lookInterval, true, func(ctx context.Context) (bool, error) { //nolint:forbidigo // no watch shows when admission has a policy
		_, err := agents.CoreV1().Pods(s.Namespace).Create(ctx, other, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return apierrors.IsInvalid(err), nil
	}))
}

// allRightsWereUsed checks that movers and maintenance jobs have used every right of their ServiceAccount, and needed no other.
func (s *served) allRightsWereUsed(t *testing.T) {
	t.Helper()
	requests, err := s.Plane.Audit(s.ctx, cluster.Query{Namespace: s.Namespace})
	require.NoError(t, err)
	require.Empty(t, rights.Refused(deploy.MoverAccountName, requests))
	var unused []string
	granted := deploy.MoverAccess(s.Namespace, deploy.Movers{Account: true})[1].(*rbacv1.Role).Rules
	for _, grant := range rights.Unused(rights.Grants(granted, nil), deploy.MoverAccountName, requests) {
		unused = append(unused, grant.String())
	}
	require.Empty(t, unused)
}
