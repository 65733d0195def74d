package integration

import (
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// workload is what a transfer of a kind needs around it, and what is to be seen there at the end.
type workload struct {
	*env
	kind   testenv.Kind
	create func() string                 // the resource
	after  func(ended *testenv.Transfer) // has to hold besides, once it is over
}

// workload prepares all but the resource.
func (e *env) workload(kind testenv.Kind) *workload {
	around := &workload{env: e, kind: kind, after: func(*testenv.Transfer) {}}
	switch kind {
	case testenv.PodVolumeBackup:
		around.create = func() string { return e.transfer() }
	case testenv.PodVolumeRestore:
		waiting := e.restores(e.node.Name())
		_, err := e.WaitPod(e.soon(), e.Apps, waiting.target.Name, testenv.WaitsForRestore)
		require.NoError(e, err)
		around.create = func() string { return e.restoreOf(waiting) }
		around.after = func(ended *testenv.Transfer) {
			if ended.Status.Phase == testenv.Completed {
				_, err := e.WaitPod(e.soon(), e.Apps, waiting.target.Name, testenv.Ready)
				require.NoError(e, err)
			}
		}
	case testenv.DataUpload:
		v := e.volumes(csi.Options{})
		v.uploading(around, "data")
		v.alone(around)
	case testenv.DataDownload:
		v := e.volumes(csi.Options{})
		v.downloading(around, "restored")
		v.alone(around)
	default:
		require.Fail(e, "no such scene", kind)
	}
	return around
}

// ends waits for the end of the transfer and for what has to be true of any: nothing is left.
func (w *workload) ends(name string, phase testenv.Phase) *testenv.Transfer {
	ended := w.settles(w.kind, name, phase)
	w.nothingLeft()
	w.after(ended)
	return ended
}

// uploading makes a claim and the snapshot for a DataUpload, which at any end is deleted exactly once.
func (e *env) uploading(around *workload, claim string) {
	source := e.claim(claim)
	snapshot, handle := e.snapshot(source)
	content := *snapshot.Status.BoundVolumeSnapshotContentName
	around.create = func() string { return e.upload(source, snapshot.Name) }
	around.after = func(*testenv.Transfer) {
		require.NoError(e, testenv.WaitGone(e.soon(), e.Snapshots.SnapshotV1().VolumeSnapshots(e.Apps), testenv.Named(snapshot.Name)))
		require.NoError(e, testenv.WaitGone(e.soon(), e.Snapshots.SnapshotV1().VolumeSnapshotContents(), testenv.Named(content)))
		require.Equal(e, 1, e.Driver.Deletions(handle), "of the snapshot by the driver")
		require.NotContains(e, e.Driver.Handles(), handle)
		require.Contains(e, e.Driver.Volumes(), e.handleOf(source), "the source")
	}
}

// downloading makes the claim that a DataDownload is for. It gets what was restored, if all went well.
func (e *env) downloading(around *workload, claim string) {
	target, err := e.TargetClaim(e.soon(), claim, e.storageClass)
	require.NoError(e, err)
	restore, err := e.Restore(e.soon(), "of-"+claim)
	require.NoError(e, err)
	around.create = func() string {
		created, err := e.DataDownload(e.soon(), restore, target, "snapshot")
		require.NoError(e, err)
		return created.Name
	}
	around.after = func(ended *testenv.Transfer) {
		if ended.Status.Phase != testenv.Completed {
			require.Empty(e, e.Driver.Volumes())
			return
		}
		bound, err := e.WaitClaim(e.soon(), e.Apps, target.Name, testenv.Bound)
		require.NoError(e, err)
		volume, err := e.WaitVolume(e.soon(), bound.Spec.VolumeName, func(volume *corev1.PersistentVolume) bool {
			return volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
		})
		require.NoError(e, err)
		require.Equal(e, target.UID, volume.Spec.ClaimRef.UID)
		e.restoredTo(ended, e.Driver.VolumeDir(volume.Spec.CSI.VolumeHandle))
		require.NotContains(e, volume.Annotations, api.AnnotationReclaimPolicy)
		require.NotContains(e, volume.Labels, api.LabelMover)
		require.Contains(e, e.Driver.Volumes(), volume.Spec.CSI.VolumeHandle)
	}
}

// alone wants a driver to have no more volumes than one: a source, or what was restored of it.
func (e *env) alone(around *workload) {
	also := around.after
	around.after = func(ended *testenv.Transfer) {
		also(ended)
		require.LessOrEqual(e, len(e.Driver.Volumes()), 1, "volumes without an owner are left")
	}
}

// waitingPod is a restore and a pod that waits for its volume.
type waitingPod struct {
	restore *velerov1.Restore
	target  *corev1.Pod
}

// restores makes a pod that waits in its init container, if it has a node.
func (e *env) restores(node string) waitingPod {
	restore, err := e.Restore(e.soon(), "nightly")
	require.NoError(e, err)
	target, err := e.RestorePod(e.soon(), restore, "restored", node, testenv.EmptyDir("data"))
	require.NoError(e, err)
	return waitingPod{restore: restore, target: target}
}

// restoreOf creates the PodVolumeRestore for it.
func (e *env) restoreOf(r waitingPod, change ...func(*velerov1.PodVolumeRestore)) string {
	created, err := e.PodVolumeRestore(e.soon(), r.restore, r.target, "data", "snapshot", e.Apps, change...)
	require.NoError(e, err)
	return created.Name
}
