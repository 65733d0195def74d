package node_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// restored marks a volume of a pod as restored, as Velero's mover does at its end.
func (s *env) restored(ctx context.Context, t *testing.T, pod *corev1.Pod, volume, uid string) {
	t.Helper()
	dir, err := s.node.VolumeDir(ctx, pod, volume)
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(dir, ".velero"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".velero", uid), nil, 0o600))
}

func TestRestoredPodStartsOnceEveryVolumeIsRestored(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{})
	restore, err := s.Restore(ctx, "monday")
	require.NoError(t, err)
	_, err = s.RestorePod(ctx, restore, "app", s.node.Name(), testenv.EmptyDir("a"), testenv.EmptyDir("b"))
	require.NoError(t, err)
	pod, err := s.WaitPod(ctx, s.Apps, "app", testenv.WaitsForRestore)
	require.NoError(t, err)
	require.Equal(t, corev1.PodPending, pod.Status.Phase)
	require.Equal(t, corev1.ConditionFalse, condition(pod, corev1.PodInitialized).Status)
	require.Equal(t, "PodInitializing", pod.Status.ContainerStatuses[0].State.Waiting.Reason)

	s.restored(ctx, t, pod, "b", string(restore.UID))
	s.restored(ctx, t, pod, "a", "another-restore")
	dir, err := s.node.VolumeDir(ctx, pod, "a")
	require.NoError(t, err)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, ".velero"))) // as movers do before they mark a volume
	s.restored(ctx, t, pod, "a", string(restore.UID))
	pod, err = s.WaitPod(ctx, s.Apps, "app", testenv.Ready)
	require.NoError(t, err)
	require.Equal(t, "Completed", pod.Status.InitContainerStatuses[0].State.Terminated.Reason)
	require.Equal(t, corev1.ConditionTrue, condition(pod, corev1.PodInitialized).Status)
	require.NoDirExists(t, filepath.Join(dir, ".velero"), "the marks are taken away")
}

func TestRestoredPodOfWhichAVolumeIsMissingDoesNotStart(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{})
	restore, err := s.Restore(ctx, "monday")
	require.NoError(t, err)
	created, err := s.RestorePod(ctx, restore, "app", s.node.Name(), testenv.EmptyDir("a"), testenv.EmptyDir("b"))
	require.NoError(t, err)
	pod, err := s.WaitPod(ctx, s.Apps, "app", testenv.WaitsForRestore)
	require.NoError(t, err)
	s.restored(ctx, t, pod, "b", string(restore.UID))
	s.restored(ctx, t, pod, "a", "another-restore")
	ends, err := s.Kube.CoreV1().Pods(s.Apps).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=app"})
	require.NoError(t, err)
	defer ends.Stop()
	require.NoError(t, s.Kube.CoreV1().Pods(s.Apps).Delete(ctx, "app", metav1.DeleteOptions{}))
	for event := range ends.ResultChan() {
		seen, ok := event.Object.(*corev1.Pod)
		require.True(t, ok)
		require.NotEqual(t, corev1.PodRunning, seen.Status.Phase)
		if event.Type == "DELETED" {
			break
		}
	}
	require.NoError(t, s.WaitPodGone(ctx, s.Apps, "app"))
	require.Empty(t, s.left(t, created))
}

func TestOtherInitContainersEndAtOnce(t *testing.T) {
	ctx := deadline(t)
	s := newEnv(ctx, t, node.Options{})
	s.mover(ctx, t, "m1", func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{{Name: "first", Image: "i"}, {Name: "second", Image: "i"}}
	})
	pod := s.pod(ctx, t, "m1", testenv.Ready)
	require.Len(t, pod.Status.InitContainerStatuses, 2)
	for _, status := range pod.Status.InitContainerStatuses {
		require.Equal(t, "Completed", status.State.Terminated.Reason)
	}
}
