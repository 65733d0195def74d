package e2e

import (
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

// planted is a pod with volumes, and what each of these had.
type planted struct {
	pod     string
	volumes map[string]map[string]string
}

// plant starts a pod in Apps, and fills its volumes.
func (s *served) plant(t *testing.T, name string, volumes ...corev1.Volume) planted {
	t.Helper()
	pod, err := s.SourcePod(s.ctx, name, "", volumes...)
	require.NoError(t, err)
	pod, err = s.WaitPod(s.ctx, s.Apps, pod.Name, testenv.Ready)
	require.NoError(t, err)
	app := planted{pod: name, volumes: map[string]map[string]string{}}
	for _, volume := range volumes {
		tree := s.volume(t, pod, volume.Name)
		s.seed++
		tree.grow(t, s.seed)
		app.volumes[volume.Name] = tree.read(t)
	}
	return app
}

// same waits for a restored pod to be Ready, and compares its volumes.
func (s *served) same(t *testing.T, namespace string, app planted) {
	t.Helper()
	pod, err := s.WaitPod(s.ctx, namespace, app.pod, testenv.Ready)
	require.NoError(t, err)
	for name, before := range app.volumes {
		require.Equal(t, before, s.volume(t, pod, name).read(t), "volume %s", name)
	}
}

// nothingLeft waits until nothing is left of what was created for transfers: no pod, claim, snapshot, volume or
// finalizer.
func (s *served) nothingLeft(t *testing.T) {
	t.Helper()
	for _, kind := range testenv.Kinds() {
		transfers, err := s.Transfers(kind).List(s.ctx)
		require.NoError(t, err)
		for _, transfer := range transfers {
			_, err := s.Transfers(kind).Wait(s.ctx, transfer.Name, testenv.Settled)
			require.NoError(t, err)
		}
	}
	s.noMoverLeft(t)
	s.noSnapshotLeft(t)
	volumes, err := s.Kube.CoreV1().PersistentVolumes().List(s.ctx, metav1.ListOptions{})
	require.NoError(t, err)
	used := 0
	for _, volume := range volumes.Items {
		if volume.Status.Phase != corev1.VolumeBound || volume.Spec.ClaimRef.Namespace == s.Namespace {
			require.NoError(t, s.WaitVolumeGone(s.ctx, volume.Name))
			continue
		}
		used++
	}
	require.Len(t, s.driver.Volumes(), used)
}

// noMoverLeft waits until Velero's namespace has the pods of its installation alone, and no claim.
func (s *served) noMoverLeft(t *testing.T) {
	t.Helper()
	pods, err := s.Kube.CoreV1().Pods(s.Namespace).List(s.ctx, metav1.ListOptions{LabelSelector: "component!=velero"})
	require.NoError(t, err)
	for _, pod := range pods.Items {
		require.NoError(t, s.WaitPodGone(s.ctx, pod.Namespace, pod.Name))
	}
	claims, err := s.Kube.CoreV1().PersistentVolumeClaims(s.Namespace).List(s.ctx, metav1.ListOptions{})
	require.NoError(t, err)
	for _, claim := range claims.Items {
		require.NoError(t, s.WaitClaimGone(s.ctx, claim.Namespace, claim.Name))
	}
}

func (s *served) noSnapshotLeft(t *testing.T) {
	t.Helper()
	snapshots, err := s.Snapshots.SnapshotV1().VolumeSnapshots("").List(s.ctx, metav1.ListOptions{})
	require.NoError(t, err)
	for _, snapshot := range snapshots.Items {
		require.NoError(t, s.WaitSnapshotGone(s.ctx, snapshot.Namespace, snapshot.Name))
	}
	contents, err := s.Snapshots.SnapshotV1().VolumeSnapshotContents().List(s.ctx, metav1.ListOptions{})
	require.NoError(t, err)
	for _, content := range contents.Items {
		require.NoError(t, s.WaitContentGone(s.ctx, content.Name))
	}
	require.Empty(t, s.driver.Handles())
}

// transfersGone waits until the garbage collector has deleted all transfers with the backup and the restores that own
// them.
func (s *served) transfersGone(t *testing.T) {
	t.Helper()
	for _, kind := range testenv.Kinds() {
		transfers, err := s.Transfers(kind).List(s.ctx)
		require.NoError(t, err)
		for _, transfer := range transfers {
			require.NoError(t, s.Transfers(kind).WaitGone(s.ctx, transfer.Name))
		}
	}
}

// bucketHasNothingOf looks for objects of backups and restores of those names; repositories have others.
func (s *served) bucketHasNothingOf(t *testing.T, names ...string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(s.store.BucketDir(), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		key, err := filepath.Rel(s.store.BucketDir(), path)
		require.NoError(t, err)
		for _, name := range names {
			require.False(t, strings.HasPrefix(key, "backups/"+name+"/") || strings.HasPrefix(key, "restores/"+name+"/"), key)
		}
		return nil
	}))
}

// forgotten checks that the repository has none of the snapshots that backups made: a restore of each fails.
func (s *served) forgotten(t *testing.T, saved ...*testenv.Transfer) {
	t.Helper()
	restore, err := s.Restore(s.ctx, "late")
	require.NoError(t, err)
	target, err := s.RestorePod(s.ctx, restore, "late", nodeName, testenv.EmptyDir("data"))
	require.NoError(t, err)
	for _, backup := range saved {
		back, err := s.PodVolumeRestore(s.ctx, restore, target, "data", backup.Status.SnapshotID, s.Apps)
		require.NoError(t, err)
		ended, err := s.Transfers(testenv.PodVolumeRestore).Wait(s.ctx, back.Name, testenv.Settled)
		require.NoError(t, err)
		require.Equal(t, testenv.Failed, ended.Status.Phase)
		require.Contains(t, ended.Status.Message, "not found")
	}
}
