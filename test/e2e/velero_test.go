package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
	"github.com/lateen-project/lateen/test/tree"
)

// gated runs pods that have passed a gate.
type gated struct {
	runner node.Runner
	gate   gate
}

func (g gated) Run(ctx context.Context, pod *corev1.Pod, host node.Host) node.Result {
	g.gate.pass(ctx)
	return g.runner.Run(ctx, pod, host)
}

// gate holds pods back while it is shut, by an element in it: they run and do nothing yet.
type gate chan struct{}

func (g gate) shut() { g <- struct{}{} }
func (g gate) open() { <-g }

func (g gate) pass(ctx context.Context) {
	select {
	case g <- struct{}{}:
		<-g
	case <-ctx.Done():
	}
}

// directory is one whose contents are compared.
type directory string

// grow fills it with what volumes have: files of all sizes, empty ones, modes, owners and links.
func (d directory) grow(t *testing.T, seed uint64) {
	t.Helper()
	t.Log("seed", seed)
	_, err := tree.Fill(string(d), 1<<20, seed)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(d.path("nothing"), 0o711))
	require.NoError(t, os.Chown(d.path("d1"), 1000, 2000))
	require.NoError(t, os.Chown(d.path("d1/f1"), 1001, 2001))
	require.NoError(t, os.Chmod(d.path("d1/f1"), 0o444))
	require.NoError(t, os.Symlink("/nowhere", d.path("dangling")))
}

func (d directory) path(name string) string { return filepath.Join(string(d), name) }

// read is what the tree has, with owners.
func (d directory) read(t *testing.T) map[string]string {
	t.Helper()
	found, err := tree.Read(string(d), func(info fs.FileInfo) string {
		owner := info.Sys().(*syscall.Stat_t)
		return fmt.Sprintf("%d:%d ", owner.Uid, owner.Gid)
	})
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return found
}

// velero runs the command that users have.
func (s *served) velero(t *testing.T, args ...string) string {
	t.Helper()
	command := exec.CommandContext(s.ctx, binary(t, "velero"), append(args, "--kubeconfig="+s.kubeconfig, "--namespace="+s.Namespace)...)
	command.Env = []string{"HOME=" + s.Dir}
	reported, err := command.CombinedOutput()
	require.NoError(t, err, "%s: %s", command, reported)
	return string(reported)
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

// restored waits for the end of a restore, which must be a success.
func (s *served) restored(t *testing.T, name string) {
	t.Helper()
	ended, err := testenv.Wait(s.ctx, s.Restores(), testenv.Named(name), func(restore *velerov1.Restore) bool { return isTerminal(restore.Status.Phase) })
	require.NoError(t, err)
	s.hasCompleted(t, "restore", name, string(ended.Status.Phase))
}

// deleteNamespace returns when a namespace is gone with all that it had.
func (s *served) deleteNamespace(t *testing.T, name string) {
	t.Helper()
	require.NoError(t, s.Kube.CoreV1().Namespaces().Delete(s.ctx, name, metav1.DeleteOptions{}))
	require.NoError(t, testenv.WaitGone(s.ctx, s.Kube.CoreV1().Namespaces(), testenv.Named(name)))
}
