package testenv_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

func TestRestoredPodWaitsForItsVolumes(t *testing.T) {
	ctx := deadline(t)
	w := newWorld(ctx, t, testenv.Options{})
	restore, err := w.Restore(ctx, "monday")
	require.NoError(t, err)
	pod, err := w.RestorePod(ctx, restore, "app", "n1", testenv.EmptyDir("data"), testenv.EmptyDir("logs"))
	require.NoError(t, err)
	require.Len(t, pod.Spec.InitContainers, 1)
	wait := pod.Spec.InitContainers[0]
	require.Equal(t, "restore-wait", wait.Name)
	require.Equal(t, []string{string(restore.UID)}, wait.Args)
	require.Equal(t, "/restores/data", wait.VolumeMounts[0].MountPath)
	require.Equal(t, "/restores/logs", wait.VolumeMounts[1].MountPath)

	created, err := w.PodVolumeRestore(ctx, restore, pod, "data", "k123", "apps-of-old")
	require.NoError(t, err)
	require.Regexp(t, "^monday-", created.Name)
	require.True(t, metav1.IsControlledBy(created, restore))
	require.Equal(t, map[string]string{
		"velero.io/restore-name": "monday", "velero.io/restore-uid": string(restore.UID), "velero.io/pod-uid": string(pod.UID),
	}, created.Labels)
	require.Equal(t, corev1.ObjectReference{Kind: "Pod", Namespace: w.Apps, Name: "app", UID: pod.UID}, created.Spec.Pod)
	require.Equal(t, "k123", created.Spec.SnapshotID)
	require.Equal(t, "apps-of-old", created.Spec.SourceNamespace)
	require.Equal(t, "kopia", created.Spec.UploaderType)
	_, err = w.PodVolumeRestore(ctx, restore, pod, "nope", "k123", "apps-of-old")
	require.ErrorContains(t, err, "pod app has no volume nope")
}

func TestSnapshotsAreMovedByUploadsAndDownloads(t *testing.T) {
	ctx := deadline(t)
	w := newWorld(ctx, t, testenv.Options{})
	backup, err := w.Backup(ctx, "nightly")
	require.NoError(t, err)
	claim, err := w.TargetClaim(ctx, "files", "fast")
	require.NoError(t, err)
	require.Contains(t, claim.Spec.Selector.MatchLabels, "velero.io/dynamic-pv-restore")

	snapshot := velerov2alpha1.CSISnapshotSpec{VolumeSnapshot: "velero-files", SnapshotClass: "copies", Driver: "csi.example.com"}
	upload, err := w.DataUpload(ctx, backup, claim, snapshot)
	require.NoError(t, err)
	require.Regexp(t, "^nightly-", upload.Name)
	require.True(t, metav1.IsControlledBy(upload, backup))
	snapshot.StorageClass = "fast"
	require.Equal(t, &snapshot, upload.Spec.CSISnapshot)
	require.Equal(t, backup.Spec.CSISnapshotTimeout, upload.Spec.OperationTimeout)
	require.Equal(t, string(claim.UID), upload.Labels["velero.io/pvc-uid"])
	require.Regexp(t, fmt.Sprintf("^du-%s.", backup.UID), upload.Labels["velero.io/async-operation-id"])

	restore, err := w.Restore(ctx, "monday")
	require.NoError(t, err)
	download, err := w.DataDownload(ctx, restore, claim, "k123",
		func(d *velerov2alpha1.DataDownload) { d.Spec.SnapshotSize = 12 })
	require.NoError(t, err)
	require.True(t, metav1.IsControlledBy(download, restore))
	require.Equal(t, velerov2alpha1.TargetVolumeSpec{PVC: "files", Namespace: w.Apps}, download.Spec.TargetVolume)
	require.Equal(t, int64(12), download.Spec.SnapshotSize)
	require.Regexp(t, fmt.Sprintf("^dd-%s.", restore.UID), download.Labels["velero.io/async-operation-id"])
}

// fourKinds creates one transfer of each kind and returns their names.
func fourKinds(t *testing.T, w *testenv.Env) map[testenv.Kind]string {
	t.Helper()
	ctx := deadline(t)
	backup, pod := backupAndPod(ctx, t, w)
	restore, err := w.Restore(ctx, "monday")
	require.NoError(t, err)
	claim, err := w.TargetClaim(ctx, "files", "fast")
	require.NoError(t, err)
	pvb, err := w.PodVolumeBackup(ctx, backup, pod, "data")
	require.NoError(t, err)
	pvr, err := w.PodVolumeRestore(ctx, restore, pod, "data", "k1", w.Apps)
	require.NoError(t, err)
	upload, err := w.DataUpload(ctx, backup, claim, velerov2alpha1.CSISnapshotSpec{VolumeSnapshot: "s"})
	require.NoError(t, err)
	download, err := w.DataDownload(ctx, restore, claim, "k1")
	require.NoError(t, err)
	return map[testenv.Kind]string{
		testenv.PodVolumeBackup: pvb.Name, testenv.PodVolumeRestore: pvr.Name,
		testenv.DataUpload: upload.Name, testenv.DataDownload: download.Name,
	}
}

func TestTransfersOfEveryKindAreSeenAlike(t *testing.T) {
	ctx := deadline(t)
	w := newWorld(ctx, t, testenv.Options{})
	names := fourKinds(t, w)
	recorder, err := w.Record(ctx)
	require.NoError(t, err)
	for kind, name := range names {
		all := w.Transfers(kind)
		found, err := all.Get(ctx, name)
		require.NoError(t, err)
		require.Equal(t, string(kind), found.Kind)
		require.NoError(t, all.Patch(ctx, name, `{"metadata":{"finalizers":["a.b/c"]},
			"status":{"phase":"InProgress","node":"n1","message":"soon","startTimestamp":"2026-05-01T00:00:00Z","progress":{"totalBytes":3,"bytesDone":2}}}`))
		found, err = all.Wait(ctx, name, testenv.In(testenv.InProgress))
		require.NoError(t, err)
		require.Equal(t, "n1", found.Node())
		require.Equal(t, "soon", found.Status.Message)
		require.Equal(t, int64(2), found.Status.Progress.BytesDone)
		require.Equal(t, 2026, found.Status.StartTimestamp.UTC().Year())
		require.NoError(t, all.Cancel(ctx, name))
		require.NoError(t, all.Patch(ctx, name, `{"status":{"phase":"Canceled"}}`))
		found, err = all.Wait(ctx, name, testenv.Ended)
		require.NoError(t, err)
		require.True(t, found.Spec.Cancel)
		require.False(t, testenv.Settled(found))
		require.NoError(t, all.Patch(ctx, name, `{"metadata":{"finalizers":null}}`))
		_, err = all.Wait(ctx, name, testenv.Settled)
		require.NoError(t, err)
		list, err := all.List(ctx)
		require.NoError(t, err)
		require.Len(t, list, 1)
		require.NoError(t, all.Delete(ctx, name))
		require.NoError(t, all.WaitGone(ctx, name))
	}
	_, err = recorder.Until(ctx, func(all []testenv.Transition) bool { return len(all) == 4*len(names) })
	require.NoError(t, err)
	for _, name := range names {
		require.Equal(t, []testenv.Phase{"", testenv.InProgress, testenv.Canceled, testenv.Gone}, recorder.Phases(name))
	}
}
