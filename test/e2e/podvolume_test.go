package e2e

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

func backUpAndRestore(t *testing.T, s *env) {
	t.Helper()
	saved, before := s.backUp(t)
	require.Equal(t, before.read(t), s.tree(t, s.restore(t, saved)).read(t))
}

// backUp backs a tree up that it has planted.
func (s *env) backUp(t *testing.T) (*testenv.Transfer, tree) {
	t.Helper()
	source := s.source(t, "app")
	before := s.tree(t, source)
	bytes := before.grow(t, 7)

	backup, err := s.Backup(s.ctx, "nightly")
	require.NoError(t, err)
	saved, err := s.PodVolumeBackup(s.ctx, backup, source, "data")
	require.NoError(t, err)
	mover, err := s.WaitPod(s.ctx, s.Namespace, saved.Name, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
	require.NoError(t, err)
	require.Equal(t, lowClass, mover.Spec.PriorityClassName)
	require.EqualValues(t, lowValue, *mover.Spec.Priority)
	ended := s.completed(t, testenv.PodVolumeBackup, saved.Name)
	require.NotEmpty(t, ended.Status.SnapshotID)
	require.Equal(t, bytes, ended.Status.Progress.TotalBytes)
	return ended, before
}

// restore restores what was backed up into another pod, and returns that when it runs.
func (s *env) restore(t *testing.T, saved *testenv.Transfer) *corev1.Pod {
	t.Helper()
	restore, err := s.Restore(s.ctx, "nightly")
	require.NoError(t, err)
	target, err := s.RestorePod(s.ctx, restore, "restored", nodeName, testenv.EmptyDir("data"))
	require.NoError(t, err)
	back, err := s.PodVolumeRestore(s.ctx, restore, target, "data", saved.Status.SnapshotID, s.Apps)
	require.NoError(t, err)
	restored := s.completed(t, testenv.PodVolumeRestore, back.Name)
	require.Equal(t, saved.Status.Progress.TotalBytes, restored.Status.Progress.TotalBytes)
	target, err = s.WaitPod(s.ctx, s.Apps, target.Name, testenv.Ready) // its init container has seen the mark of the restore
	require.NoError(t, err)
	return target
}

// source is a pod that runs and has an emptyDir.
func (s *env) source(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	return s.runs(t, name, testenv.EmptyDir("data"))
}

func (s *env) runs(t *testing.T, name string, volume corev1.Volume) *corev1.Pod {
	t.Helper()
	pod, err := s.SourcePod(s.ctx, name, nodeName, volume)
	require.NoError(t, err)
	pod, err = s.WaitPod(s.ctx, s.Apps, pod.Name, testenv.Ready)
	require.NoError(t, err)
	return pod
}

// tree is the volume "data" of a pod.
func (s *env) tree(t *testing.T, pod *corev1.Pod) tree {
	t.Helper()
	return s.volume(t, pod, "data")
}

func (s *env) volume(t *testing.T, pod *corev1.Pod, name string) tree {
	t.Helper()
	dir, err := s.Nodes[0].VolumeDir(s.ctx, pod, name)
	require.NoError(t, err)
	dir, err = filepath.EvalSymlinks(dir) // a walk does not follow one that it begins with
	require.NoError(t, err)
	return tree(dir)
}
