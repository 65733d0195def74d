package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	storageClass  = "e2e-fast"
	snapshotClass = "e2e-snaps"
)

// startStorage adds a CSI driver, whose volumes are directories, and the real snapshot-controller.
func (s *env) startStorage(t *testing.T, change ...func(*storagev1.StorageClass)) *csi.Driver {
	t.Helper()
	controller, err := testenv.ServeSnapshots(s.ctx, s.plane)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, controller.Stop()) })
	dir := filepath.Join(t.TempDir(), "array")
	require.NoError(t, os.Mkdir(dir, 0o755))
	driver, err := csi.Start(s.ctx, s.plane.Admin(), csi.Options{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(driver.Stop)
	require.NoError(t, s.StorageClass(s.ctx, storageClass, driver.Name(), change...))
	require.NoError(t, s.SnapshotClass(s.ctx, snapshotClass, driver.Name()))
	return driver
}

func TestASnapshotIsUploadedAndDownloaded(t *testing.T) {
	t.Parallel()
	ofEveryVersion(t, uploadAndDownload)
}

func uploadAndDownload(t *testing.T, s *env) {
	t.Helper()
	driver := s.startStorage(t)
	claim, err := s.CSIClaim(s.ctx, "data", storageClass)
	require.NoError(t, err)
	user := s.user(t, "app", claim)
	before := s.tree(t, user)
	bytes := before.grow(t, 7)

	backup, err := s.Backup(s.ctx, "nightly")
	require.NoError(t, err)
	snapshot, err := s.Snapshot(s.ctx, backup, claim, snapshotClass)
	require.NoError(t, err)
	claim, err = s.Kube.CoreV1().PersistentVolumeClaims(s.Apps).Get(s.ctx, claim.Name, metav1.GetOptions{})
	require.NoError(t, err)
	saved, err := s.DataUpload(s.ctx, backup, claim, velerov2alpha1.CSISnapshotSpec{
		VolumeSnapshot: snapshot.Name, SnapshotClass: snapshotClass, Driver: driver.Name(),
	})
	require.NoError(t, err)
	ended := s.completed(t, testenv.DataUpload, saved.Name)
	require.NotEmpty(t, ended.Status.SnapshotID)
	require.Equal(t, bytes, ended.Status.Progress.TotalBytes)
	require.Equal(t, "linux", ended.Status.NodeOS)
	require.Empty(t, driver.Handles(), "snapshots are left")

	restore, err := s.Restore(s.ctx, "nightly")
	require.NoError(t, err)
	target, err := s.TargetClaim(s.ctx, "restored", storageClass)
	require.NoError(t, err)
	back, err := s.DataDownload(s.ctx, restore, target, ended.Status.SnapshotID)
	require.NoError(t, err)
	restored := s.completed(t, testenv.DataDownload, back.Name)
	require.Equal(t, bytes, restored.Status.Progress.TotalBytes)
	target, err = s.Kube.CoreV1().PersistentVolumeClaims(s.Apps).Get(s.ctx, target.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, corev1.ClaimBound, target.Status.Phase)
	require.Equal(t, before.read(t), s.tree(t, s.user(t, "restored", target)).read(t))
	require.Len(t, driver.Volumes(), 2, "the source, and what was restored")
}

// user is a pod that runs and mounts a claim.
func (s *env) user(t *testing.T, name string, claim *corev1.PersistentVolumeClaim) *corev1.Pod {
	t.Helper()
	pod, err := s.SourcePod(s.ctx, name, nodeName, testenv.ClaimVolume("data", claim.Name))
	require.NoError(t, err)
	pod, err = s.WaitPod(s.ctx, s.Apps, pod.Name, testenv.Ready)
	require.NoError(t, err)
	return pod
}
