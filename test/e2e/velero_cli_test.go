package e2e

import (
	"os/exec"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// velero runs the command that users have.
func (s *served) velero(t *testing.T, args ...string) string {
	t.Helper()
	command := exec.CommandContext(s.ctx, binary(t, "velero"), append(args, "--kubeconfig="+s.kubeconfig, "--namespace="+s.Namespace)...)
	command.Env = []string{"HOME=" + s.dir}
	reported, err := command.CombinedOutput()
	require.NoError(t, err, "%s: %s", command, reported)
	return string(reported)
}

// backupName is that of the one backup of a test.
const backupName = "nightly"

// startBackup asks for the backup of Apps.
func (s *served) startBackup(t *testing.T, how string) {
	t.Helper()
	s.velero(t, "backup", "create", backupName, "--include-namespaces="+s.Apps, how)
}

// backedUp waits for the end of the backup, which must be a success.
func (s *served) backedUp(t *testing.T) {
	t.Helper()
	ended, err := s.WaitBackup(s.ctx, backupName, func(backup *velerov1.Backup) bool {
		return slices.Contains([]velerov1.BackupPhase{
			velerov1.BackupPhaseCompleted, velerov1.BackupPhasePartiallyFailed, velerov1.BackupPhaseFailed, velerov1.BackupPhaseFailedValidation,
		}, backup.Status.Phase)
	})
	require.NoError(t, err)
	if ended.Status.Phase != velerov1.BackupPhaseCompleted {
		require.Failf(t, "the backup has not succeeded", "%s\n%s", s.velero(t, "backup", "describe", backupName, "--details"), s.velero(t, "backup", "logs", backupName))
	}
}

// startRestore asks for a restore of the backup.
func (s *served) startRestore(t *testing.T, name string, flags ...string) {
	t.Helper()
	s.velero(t, append([]string{"restore", "create", name, "--from-backup=" + backupName}, flags...)...)
}

// restored waits for the end of a restore, which must be a success.
func (s *served) restored(t *testing.T, name string) {
	t.Helper()
	ended, err := s.WaitRestore(s.ctx, name, func(restore *velerov1.Restore) bool {
		return slices.Contains([]velerov1.RestorePhase{
			velerov1.RestorePhaseCompleted, velerov1.RestorePhasePartiallyFailed, velerov1.RestorePhaseFailed, velerov1.RestorePhaseFailedValidation,
		}, restore.Status.Phase)
	})
	require.NoError(t, err)
	if ended.Status.Phase != velerov1.RestorePhaseCompleted {
		require.Failf(t, "the restore has not succeeded", "%s\n%s", s.velero(t, "restore", "describe", name, "--details"), s.velero(t, "restore", "logs", name))
	}
}

// deleteBackup deletes the backup as users do, and returns when it is gone.
func (s *served) deleteBackup(t *testing.T) {
	t.Helper()
	s.velero(t, "backup", "delete", backupName, "--confirm")
	require.NoError(t, s.WaitBackupGone(s.ctx, backupName))
}

// deleteNamespace returns when a namespace is gone with all that it had.
func (s *served) deleteNamespace(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, s.Kube.CoreV1().Namespaces().Delete(s.ctx, name, metav1.DeleteOptions{}))
	require.NoError(t, s.WaitNamespaceGone(s.ctx, name))
}
