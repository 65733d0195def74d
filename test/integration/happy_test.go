package integration

import (
	"fmt"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// nothingLeft waits until nothing is left of what agents have made.
func (e *env) nothingLeft() {
	core, snapshots, all := e.Kube.CoreV1(), e.Snapshots.SnapshotV1(), metav1.ListOptions{}
	require.NoError(e, testenv.WaitGone(e.soon(), core.Pods(e.Namespace), metav1.ListOptions{LabelSelector: api.LabelMover + "=true"}))
	require.NoError(e, testenv.WaitGone(e.soon(), core.PersistentVolumeClaims(e.Namespace), all))
	require.NoError(e, testenv.WaitGone(e.soon(), core.PersistentVolumes(), all, func(object runtime.Object) bool {
		volume, ok := object.(*corev1.PersistentVolume)
		return ok && volume.Spec.ClaimRef != nil && volume.Spec.ClaimRef.Namespace == e.Namespace
	}))
	require.NoError(e, testenv.WaitGone(e.soon(), snapshots.VolumeSnapshots(e.Namespace), all))
	require.NoError(e, testenv.WaitGone(e.soon(), snapshots.VolumeSnapshotContents(), all, func(object runtime.Object) bool {
		content, ok := object.(*snapshotv1.VolumeSnapshotContent)
		return ok && content.Spec.VolumeSnapshotRef.Namespace == e.Namespace
	}))
}

// TestFinishedTransfersAreDeletedWithTheirOwnersEnd: Velero reads a DataUpload until its Backup is done, and a
// DataDownload until its Restore is. PodVolumeBackups are never deleted: the deletion of a backup reads them.
func TestFinishedTransfersAreDeletedWithTheirOwnersEnd(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{})
	v.start(func(options *agent.Options) {
		options.Flags.FinishedTTL, options.OrphanSweep = time.Second, 200*time.Millisecond
	})
	podVolume := v.completes(v.transfer()).Name
	upload, _ := v.uploads("data")
	v.settles(testenv.DataUpload, upload, testenv.Completed)
	download := v.download(v.target())
	v.settles(testenv.DataDownload, download, testenv.Completed)
	done := []byte(`{"status":{"phase":"Completed"}}`)
	_, err := v.Backups().Patch(v.soon(), v.backup.Name, types.MergePatchType, done, metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = v.Restores().Patch(v.soon(), "nightly", types.MergePatchType, done, metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, v.Transfers(testenv.DataUpload).WaitGone(v.soon(), upload))
	require.NoError(t, v.Transfers(testenv.DataDownload).WaitGone(v.soon(), download))
	_, err = v.Transfers(testenv.PodVolumeBackup).Get(v.soon(), podVolume)
	require.NoError(t, err)
}

// expire backdates an accepted transfer, so that its prepare timeout has passed. The agent that runs fails it with what it
// has observed so far, which may be less than what the test has: every cache has a watch of its own.
func (e *env) expire(kind testenv.Kind, name string) {
	accepted := time.Now().Add(-time.Hour).UTC().Format(time.RFC3339)
	require.NoError(e, e.Transfers(kind).Patch(e.soon(), name, fmt.Sprintf(`{"status":{"acceptedTimestamp":%q}}`, accepted)))
}
