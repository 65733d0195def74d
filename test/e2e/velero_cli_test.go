package e2e

import (
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

// velero runs the command that users have.
func (s *served) velero(t *testing.T, args ...string) string {
	t.Helper()
	command := exec.CommandContext(s.ctx, binary(t, "velero"), append(args, "--kubeconfig="+s.kubeconfig, "--namespace="+s.Namespace)...)
	command.Env = []string{"HOME=" + s.Dir}
	reported, err := command.CombinedOutput()
	require.NoError(t, err, "%s: %s", command, reported)
	return string(reported)
}

// startBackup asks for the backup of Apps, which is called like that namespace. Snapshots are moved, and files are copied of the volumes
// that pods name.
func (s *served) startBackup(t *testing.T) {
	t.Helper()
	s.velero(t, "backup", "create", s.Apps, "--include-namespaces="+s.Apps, "--snapshot-move-data")
}

// backedUp waits for the end of the backup, which must be a success.
func (s *served) backedUp(t *testing.T) {
	t.Helper()
	ended, err := testenv.Wait(s.ctx, s.Backups(), testenv.Named(s.Apps), func(backup *velerov1.Backup) bool { return isTerminal(backup.Status.Phase) })
	require.NoError(t, err)
	s.hasCompleted(t, "backup", s.Apps, string(ended.Status.Phase))
}

// isTerminal reports whether the server has nothing left to do for a backup or a restore: both have these phases.
func isTerminal[Phase ~string](phase Phase) bool {
	return slices.Contains([]Phase{"Completed", "PartiallyFailed", "Failed", "FailedValidation"}, phase)
}

// hasCompleted shows what the server says of a backup or a restore that has not.
func (s *served) hasCompleted(t *testing.T, kind, name, phase string) {
	t.Helper()
	if phase != "Completed" {
		require.Failf(t, "the "+kind+" has not succeeded", "%s\n%s", s.velero(t, kind, "describe", name, "--details"), s.velero(t, kind, "logs", name))
	}
}

// startRestore asks for a restore of the backup.
func (s *served) startRestore(t *testing.T, name string, flags ...string) {
	t.Helper()
	s.velero(t, append([]string{"restore", "create", name, "--from-backup=" + s.Apps}, flags...)...)
}

// restored waits for the end of a restore, which must be a success.
func (s *served) restored(t *testing.T, name string) {
	t.Helper()
	ended, err := testenv.Wait(s.ctx, s.Restores(), testenv.Named(name), func(restore *velerov1.Restore) bool { return isTerminal(restore.Status.Phase) })
	require.NoError(t, err)
	s.hasCompleted(t, "restore", name, string(ended.Status.Phase))
}

// deleteBackup deletes the backup as users do, and returns when it is gone.
func (s *served) deleteBackup(t *testing.T) {
	t.Helper()
	s.velero(t, "backup", "delete", s.Apps, "--confirm")
	require.NoError(t, testenv.WaitGone(s.ctx, s.Backups(), testenv.Named(s.Apps)))
}

// deleteNamespace returns when a namespace is gone with all that it had.
func (s *served) deleteNamespace(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, s.Kube.CoreV1().Namespaces().Delete(s.ctx, name, metav1.DeleteOptions{}))
	require.NoError(t, testenv.WaitGone(s.ctx, s.Kube.CoreV1().Namespaces(), testenv.Named(name)))
}
