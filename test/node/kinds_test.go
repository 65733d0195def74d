package node_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// transferOf creates a transfer of any kind and its mover. The mover has one volume, named after the transfer as in
// Velero.
func (s *transfers) transferOf(ctx context.Context, t *testing.T, kind testenv.Kind) *testenv.Transfer {
	t.Helper()
	restore, err := s.Restore(ctx, "monday")
	require.NoError(t, err)
	claim, err := s.TargetClaim(ctx, "files", "fast")
	require.NoError(t, err)
	create := map[testenv.Kind]func() (string, error){
		testenv.PodVolumeBackup: func() (string, error) {
			created, err := s.PodVolumeBackup(ctx, s.backup, s.source, "data")
			return created.Name, err
		},
		testenv.PodVolumeRestore: func() (string, error) {
			created, err := s.PodVolumeRestore(ctx, restore, s.source, "data", "k1", s.Apps)
			return created.Name, err
		},
		testenv.DataUpload: func() (string, error) {
			created, err := s.DataUpload(ctx, s.backup, claim, velerov2alpha1.CSISnapshotSpec{VolumeSnapshot: "s"})
			return created.Name, err
		},
		testenv.DataDownload: func() (string, error) {
			created, err := s.DataDownload(ctx, restore, claim, "k1")
			return created.Name, err
		},
	}
	name, err := create[kind]()
	require.NoError(t, err)
	created, err := s.Transfers(kind).Get(ctx, name)
	require.NoError(t, err)
	s.mover(ctx, t, name, func(pod *corev1.Pod) {
		pod.Labels = map[string]string{kind.Label(): name}
		volume := string(created.UID)
		pod.Spec.Volumes = []corev1.Volume{testenv.EmptyDir(volume)}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: volume, MountPath: "/" + volume}}
		pod.Spec.Containers[0].Args = []string{"--" + strings.TrimPrefix(kind.Label(), "velero.io/") + "=" + name, "--volume-mode=Filesystem"}
	})
	return created
}

func TestStandInPlaysMoversOfEveryKind(t *testing.T) {
	tests := map[testenv.Kind]struct {
		inEvents, inResults string
		success             string
	}{
		testenv.PodVolumeBackup: {
			inEvents: "PVB", inResults: "PVB",
			success: `{"snapshotID":"snapshot-of-NAME","emptySnapshot":false,"source":{"byPath":"/UID","volumeMode":"Filesystem"},"totalBytes":1000,"incrementalBytes":500}`,
		},
		testenv.PodVolumeRestore: {
			inEvents: "PVR", inResults: "PVR", success: `{"target":{"byPath":"/UID","volumeMode":"Filesystem"},"totalBytes":1000}`,
		},
		testenv.DataUpload: {
			inEvents: "data upload", inResults: "DataUpload",
			success: `{"snapshotID":"snapshot-of-NAME","emptySnapshot":false,"source":{"byPath":"/UID","volumeMode":"Filesystem"},"totalBytes":1000,"incrementalBytes":500}`,
		},
		testenv.DataDownload: {
			inEvents: "data download", inResults: "DataDownload", success: `{"target":{"byPath":"/UID","volumeMode":"Filesystem"},"totalBytes":1000}`,
		},
	}
	for kind, test := range tests {
		t.Run(fmt.Sprintf("%s completes", kind), func(t *testing.T) {
			ctx := deadline(t)
			s := newTransfers(ctx, t, 10*time.Millisecond, func(*node.StandIn) {})
			created := s.transferOf(ctx, t, kind)
			pod := s.pod(ctx, t, created.Name, testenv.Ready)
			require.True(t, node.IsMover(pod))
			volume, err := s.node.VolumeDir(ctx, pod, string(created.UID))
			require.NoError(t, err)
			require.NoError(t, node.WriteData(volume, "what is there\n"))
			require.NoError(t, s.Transfers(kind).Patch(ctx, created.Name, `{"status":{"phase":"InProgress"}}`))
			code, message := s.end(ctx, t, created.Name)
			require.Zero(t, code)
			require.Equal(t, strings.NewReplacer("NAME", created.Name, "UID", string(created.UID)).Replace(test.success), message)
			completed := s.events(ctx, t, created)["Data-Path-Completed"]
			require.Equal(t, message, completed.Message)
			require.Equal(t, string(kind), completed.InvolvedObject.Kind)
			require.Equal(t, created.APIVersion, completed.InvolvedObject.APIVersion)
			s.moved(t, created, volume)
			mark := filepath.Join(volume, ".velero", string(created.OwnerReferences[0].UID))
			if kind == testenv.PodVolumeRestore {
				require.FileExists(t, mark)
			} else {
				require.NoFileExists(t, mark)
			}
		})
		t.Run(fmt.Sprintf("%s is canceled", kind), func(t *testing.T) {
			ctx := deadline(t)
			s := newTransfers(ctx, t, time.Hour, func(*node.StandIn) {})
			created := s.transferOf(ctx, t, kind)
			require.NoError(t, s.Transfers(kind).Patch(ctx, created.Name, `{"status":{"phase":"InProgress"}}`))
			s.moves(ctx, t, created)
			require.NoError(t, s.Transfers(kind).Cancel(ctx, created.Name))
			code, message := s.end(ctx, t, created.Name)
			require.EqualValues(t, 1, code)
			require.Equal(t, fmt.Sprintf("Failed to run data path service for %s %s: data path is canceled", test.inResults, created.Name), message)
			events := s.events(ctx, t, created)
			require.Equal(t, fmt.Sprintf("Canceling for %s %s", test.inEvents, created.Name), events["Data-Path-Canceling"].Message)
			require.Equal(t, fmt.Sprintf("Data path for %s %s canceled", test.inEvents, created.Name), events["Data-Path-Canceled"].Message)
		})
	}
}

// moved requires that a backup has read the content of the volume, and that a restore has written its own.
func (s *transfers) moved(t *testing.T, created *testenv.Transfer, volume string) {
	t.Helper()
	there, err := node.ReadData(volume)
	require.NoError(t, err)
	read, ok := s.movers.Uploaded(created.UID)
	switch testenv.Kind(created.Kind) {
	case testenv.PodVolumeBackup, testenv.DataUpload:
		require.True(t, ok)
		require.Equal(t, "what is there\n", read)
		require.Equal(t, "what is there\n", there)
	case testenv.PodVolumeRestore, testenv.DataDownload:
		require.False(t, ok)
		require.Equal(t, node.Data(created.UID, "k1"), there)
		require.NotEqual(t, node.Data(created.UID, "k2"), there)
	}
}

func TestAnEmptyVolumeHasNoData(t *testing.T) {
	data, err := node.ReadData(t.TempDir())
	require.NoError(t, err)
	require.Empty(t, data)
	require.ErrorContains(t, node.WriteData("/no/such/volume", "data"), "/no/such/volume")
}

func TestStandInWithoutAResourceFails(t *testing.T) {
	ctx := deadline(t)
	s := newTransfers(ctx, t, time.Hour, func(*node.StandIn) {})
	s.mover(ctx, t, "nameless", func(pod *corev1.Pod) { pod.Spec.Containers[0].Args = nil })
	code, message := s.end(ctx, t, "nameless")
	require.EqualValues(t, 1, code)
	require.Equal(t, "pod nameless names no resource in its arguments", message)
}
