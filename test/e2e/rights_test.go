package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/rights"
	"github.com/lateen-project/lateen/test/testenv"
)

// Real movers of each kind and a real maintenance job use every right of ServiceAccount lateen-mover, and need no other.
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
