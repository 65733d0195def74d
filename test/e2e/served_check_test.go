package e2e

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/exposer/api"
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
		filled := s.volume(t, pod, volume.Name)
		s.seed++
		filled.grow(t, s.seed)
		app.volumes[volume.Name] = filled.read(t)
	}
	return app
}

// volume is the directory of a pod's volume.
func (s *served) volume(t *testing.T, pod *corev1.Pod, name string) directory {
	t.Helper()
	dir, err := s.Nodes[0].VolumeDir(s.ctx, pod, name)
	require.NoError(t, err)
	dir, err = filepath.EvalSymlinks(dir) // a walk does not follow one that it begins with
	require.NoError(t, err)
	return directory(dir)
}

// same waits for restored pods to be Ready, and compares their volumes.
func (s *served) same(t *testing.T, namespace string, apps ...planted) {
	t.Helper()
	for _, app := range apps {
		pod, err := s.WaitPod(s.ctx, namespace, app.pod, testenv.Ready)
		require.NoError(t, err)
		for name, before := range app.volumes {
			require.Equal(t, before, s.volume(t, pod, name).read(t), "volume %s of pod %s", name, app.pod)
		}
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
	ours := func(object runtime.Object) bool {
		switch object := object.(type) {
		case *snapshotv1.VolumeSnapshotContent:
			return object.Spec.Driver == s.Driver.Name()
		case *corev1.PersistentVolume:
			return object.Spec.CSI != nil && object.Spec.CSI.Driver == s.Driver.Name()
		}
		return true
	}
	notOfApps := func(object runtime.Object) bool {
		volume, ok := object.(*corev1.PersistentVolume)
		return ok && (volume.Status.Phase != corev1.VolumeBound || volume.Spec.ClaimRef.Namespace == s.Namespace)
	}
	all := metav1.ListOptions{}
	// A repository that the server finds ready at its second attempt has no time of maintenance, and gets a job at once.
	movers := metav1.ListOptions{LabelSelector: "component!=velero,!" + api.LabelRepository}
	require.NoError(t, testenv.WaitGone(s.ctx, s.Kube.CoreV1().Pods(s.Namespace), movers))
	require.NoError(t, testenv.WaitGone(s.ctx, s.Kube.CoreV1().PersistentVolumeClaims(s.Namespace), all))
	for _, namespace := range []string{s.Namespace, s.Apps, s.copies()} {
		require.NoError(t, testenv.WaitGone(s.ctx, s.Snapshots.SnapshotV1().VolumeSnapshots(namespace), all))
	}
	require.NoError(t, testenv.WaitGone(s.ctx, s.Snapshots.SnapshotV1().VolumeSnapshotContents(), all, ours))
	require.Empty(t, s.Driver.Handles())
	require.NoError(t, testenv.WaitGone(s.ctx, s.Kube.CoreV1().PersistentVolumes(), all, ours, notOfApps))
	volumes, err := s.Kube.CoreV1().PersistentVolumes().List(s.ctx, all)
	require.NoError(t, err)
	used := slices.DeleteFunc(volumes.Items, func(volume corev1.PersistentVolume) bool { return !ours(&volume) })
	require.Len(t, s.Driver.Volumes(), len(used))
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
	target, err := s.RestorePod(s.ctx, restore, "late", s.nodeName(), testenv.EmptyDir("data"))
	require.NoError(t, err)
	var restores []string
	for _, backup := range saved {
		back, err := s.PodVolumeRestore(s.ctx, restore, target, "data", backup.Status.SnapshotID, s.Apps)
		require.NoError(t, err)
		restores = append(restores, back.Name)
	}
	for _, name := range restores {
		ended, err := s.Transfers(testenv.PodVolumeRestore).Wait(s.ctx, name, testenv.Settled)
		require.NoError(t, err)
		require.Equal(t, testenv.Failed, ended.Status.Phase)
		require.Contains(t, ended.Status.Message, "not found")
	}
}
