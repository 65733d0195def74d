package e2e

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/rights"
	"github.com/lateen-project/lateen/test/testenv"
)

// Real movers of each kind and a real maintenance job, of each version, do their work. They use every right of ServiceAccount
// lateen-mover, and need no other. The policies on what agents may create admit them all.
func TestMoversHaveExactlyTheRightsThatTheyNeed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"velero", "velero-1.17"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			moveWithOwnAccount(t, buildEnv(t, name))
		})
	}
}

func moveWithOwnAccount(t *testing.T, s *env) {
	t.Helper()
	require.NoError(t, testenv.Apply(s.ctx, s.Plane.Admin(), deploy.MoverAccess(s.Namespace, deploy.Movers{Account: true})...))
	server, err := s.Kube.AppsV1().Deployments(s.Namespace).Get(s.ctx, deploy.VeleroDeployment, metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, testenv.Apply(s.ctx, s.Plane.Admin(), deploy.PodPolicies(deploy.PodPolicyOf(s.Namespace, filepath.Join(s.Dir, "kubelet", "pods"),
		deploy.PodPolicyRestricted, deploy.Movers{Account: true}, deploy.InheritedFrom(server.Spec.Template.Spec, corev1.PodSpec{})))...))
	s.policiesAreInForce(t)
	jobs := s.followJobs(t)
	s.startAgent(t, hourly, func(options *agent.Options) { options.Flags.MoverServiceAccount = deploy.MoverAccountName })
	s.overdue(t, s.repository)
	only := jobs.until(t, func(*batchv1.Job) bool { return true })
	s.until(t, s.repository, func(r *velerov1.BackupRepository) bool { return has(r, only) })
	// The mover creates the repository of a namespace that has none.
	require.NoError(t, s.Repositories().Delete(s.ctx, s.repository.Name, metav1.DeleteOptions{}))
	backUpAndRestore(t, s)
	s.deleteBackup(t)
	uploadAndDownload(t, s)

	requests, err := s.Plane.Audit(s.ctx, cluster.Query{})
	require.NoError(t, err)
	require.Empty(t, rights.Refused(deploy.MoverAccountName, requests))
	var unused []string
	for _, grant := range rights.Unused(rights.Grants(deploy.MoverRules(), nil), deploy.MoverAccountName, requests) {
		unused = append(unused, grant.String())
	}
	require.Empty(t, unused)
}

// policiesAreInForce waits until the agents may not create a pod of their own choice.
func (s *env) policiesAreInForce(t *testing.T) {
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

// deleteBackup deletes what backUpAndRestore has created, so that uploadAndDownload can use its names.
func (s *env) deleteBackup(t *testing.T) {
	t.Helper()
	require.NoError(t, s.Restores().Delete(s.ctx, "nightly", metav1.DeleteOptions{}))
	require.NoError(t, testenv.WaitGone(s.ctx, s.Restores(), testenv.Named("nightly")))
	require.NoError(t, s.Backups().Delete(s.ctx, "nightly", metav1.DeleteOptions{}))
	require.NoError(t, testenv.WaitGone(s.ctx, s.Backups(), testenv.Named("nightly")))
	for _, name := range []string{"app", "restored"} {
		require.NoError(t, s.Kube.CoreV1().Pods(s.Apps).Delete(s.ctx, name, metav1.DeleteOptions{}))
		require.NoError(t, s.WaitPodGone(s.ctx, s.Apps, name))
	}
}
