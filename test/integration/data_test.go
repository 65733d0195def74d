package integration

import (
	"context"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// fill gives the volume data of a pod data of its own.
func (s *env) fill(ctx context.Context, on *node.Node, pod *corev1.Pod) {
	s.Helper()
	dir, err := on.VolumeDir(ctx, pod, "data")
	require.NoError(s, err)
	require.NoError(s, node.WriteData(dir, node.Data(pod.UID, "")))
}

// fill gives a claim's volume data of its own.
func (v *volumes) fill(claim *corev1.PersistentVolumeClaim) {
	v.Helper()
	require.NoError(v, node.WriteData(v.driver.VolumeDir(v.handleOf(claim)), node.Data(claim.UID, "")))
}

// movedAll wants a transfer that is Completed to have moved its own data: its mover was given the volume of the pod, or of
// the claim, that it is about, and nothing has changed what was restored since.
func (s *env) movedAll(ended *testenv.Transfer) {
	s.Helper()
	uploaded, ok := s.mover.Uploaded(ended.UID)
	switch testenv.Kind(ended.Kind) {
	case testenv.PodVolumeBackup:
		require.True(s, ok, "no mover has read a volume")
		require.Equal(s, node.Data(ended.Spec.Pod.UID, ""), uploaded)
	case testenv.DataUpload:
		require.True(s, ok, "no mover has read a volume")
		require.Equal(s, node.Data(types.UID(ended.Labels[velerov1.PVCUIDLabel]), ""), uploaded)
	case testenv.PodVolumeRestore:
		pod, err := s.Kube.CoreV1().Pods(ended.Spec.Pod.Namespace).Get(s.soon(), ended.Spec.Pod.Name, metav1.GetOptions{})
		require.NoError(s, err)
		dir, err := s.node.VolumeDir(s.soon(), pod, ended.Spec.Volume)
		require.NoError(s, err)
		s.restoredTo(ended, dir)
	case testenv.DataDownload: // delivered looks into the volume of its target
	}
}

// restoredTo wants a volume to have what a restore has written.
func (s *env) restoredTo(ended *testenv.Transfer, dir string) {
	s.Helper()
	found, err := node.ReadData(dir)
	require.NoError(s, err)
	require.Equal(s, node.Data(ended.UID, ended.Spec.SnapshotID), found)
}
