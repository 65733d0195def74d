package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// storageClass is the name of a class of storage and of one of snapshots.
const storageClass = "e2e-fast"

// startStorage adds a CSI driver, whose volumes are directories, and the real snapshot-controller.
func (s *env) startStorage(t *testing.T, change ...func(*storagev1.StorageClass)) {
	t.Helper()
	controller, err := testenv.ServeSnapshots(s.ctx, s.plane)
	require.NoError(t, err)
	s.AtEnd(controller.Stop)
	require.NoError(t, s.StartDriver(s.ctx, storageClass, csi.Options{}, change...))
}

func uploadAndDownload(t *testing.T, s *env) {
	t.Helper()
	s.startStorage(t)
	claim := s.claim(t)
	user := s.user(t, "app", claim)
	before := s.tree(t, user)
	bytes := before.grow(t, 7)

	backup, err := s.Backup(s.ctx, "nightly")
	require.NoError(t, err)
	snapshot, err := s.Snapshot(s.ctx, backup, claim, storageClass)
	require.NoError(t, err)
	claim, err = s.WaitClaim(s.ctx, s.Apps, claim.Name, testenv.Bound)
	require.NoError(t, err)
	saved, err := s.DataUpload(s.ctx, backup, claim, velerov2alpha1.CSISnapshotSpec{
		VolumeSnapshot: snapshot.Name, SnapshotClass: storageClass, Driver: s.Driver.Name(),
	})
	require.NoError(t, err)
	ended := s.completed(t, testenv.DataUpload, saved.Name)
	require.NotEmpty(t, ended.Status.SnapshotID)
	require.Equal(t, bytes, ended.Status.Progress.TotalBytes)
	require.Equal(t, "linux", ended.Status.NodeOS)
	require.Empty(t, s.Driver.Handles(), "snapshots are left")

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
	require.True(t, testenv.Bound(target))
	require.Equal(t, before.read(t), s.tree(t, s.user(t, "restored", target)).read(t))
	require.Len(t, s.Driver.Volumes(), 2, "the source, and what was restored")
}

func (s *env) claim(t *testing.T) *corev1.PersistentVolumeClaim {
	t.Helper()
	claim, err := s.CSIClaim(s.ctx, "data", storageClass)
	require.NoError(t, err)
	return claim
}

// user is a pod that runs and mounts a claim.
func (s *env) user(t *testing.T, name string, claim *corev1.PersistentVolumeClaim) *corev1.Pod {
	t.Helper()
	return s.runs(t, name, testenv.ClaimVolume("data", claim.Name))
}
