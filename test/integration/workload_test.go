package integration

import (
	"slices"

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
func (s *env) workload(kind testenv.Kind) *workload {
	around := &workload{env: s, kind: kind, after: func(*testenv.Transfer) {}}
	switch kind {
	case testenv.PodVolumeBackup:
		around.create = func() string { return s.transfer() }
	case testenv.PodVolumeRestore:
		waiting := s.restores(s.node.Name())
		_, err := s.WaitPod(s.soon(), s.Apps, waiting.target.Name, testenv.WaitsForRestore)
		require.NoError(s, err)
		around.create = func() string { return s.restoreOf(waiting) }
		around.after = func(ended *testenv.Transfer) {
			if ended.Status.Phase == testenv.Completed {
				_, err := s.WaitPod(s.soon(), s.Apps, waiting.target.Name, testenv.Ready)
				require.NoError(s, err)
			}
		}
	case testenv.DataUpload:
		v := s.volumes(csi.Options{})
		v.uploading(around, "data")
		v.alone(around)
	case testenv.DataDownload:
		v := s.volumes(csi.Options{})
		v.downloading(around, "restored")
		v.alone(around)
	default:
		require.Fail(s, "no such scene", kind)
	}
	return around
}

// moves waits until the transfer is past its preparation, a step at a time.
func (around *workload) moves(name string) {
	before := []testenv.Phase{""}
	for _, phase := range []testenv.Phase{testenv.Accepted, testenv.Prepared, testenv.InProgress} {
		_, err := around.Transfers(around.kind).Wait(around.soon(), name, func(seen *testenv.Transfer) bool {
			return !slices.Contains(before, seen.Status.Phase)
		})
		require.NoError(around, err, "not %s", phase)
		before = append(before, phase)
	}
}

// ends waits for the end of the transfer and for what has to be true of any: nothing is left.
func (around *workload) ends(name string, phase testenv.Phase) *testenv.Transfer {
	around.moves(name)
	_, err := around.Transfers(around.kind).Wait(around.soon(), name, testenv.Ended)
	require.NoError(around, err)
	around.nothingLeft() // a step at a time; below it has to be so
	ended, err := around.Transfers(around.kind).Wait(around.soon(), name, testenv.Settled)
	require.NoError(around, err)
	require.Equal(around, phase, ended.Status.Phase, ended.Status.Message)
	if phase == testenv.Completed {
		around.movedAll(ended)
	}
	require.NotNil(around, ended.Status.CompletionTimestamp)
	require.NotContains(around, ended.Labels, api.LabelExposing)
	around.nothingLeft()
	around.after(ended)
	return ended
}

// uploading makes a claim and the snapshot for a DataUpload, which at any end is deleted exactly once.
func (s *env) uploading(around *workload, claim string) {
	source := s.claim(claim)
	snapshot, handle := s.snapshot(source)
	content := *snapshot.Status.BoundVolumeSnapshotContentName
	around.create = func() string { return s.upload(source, snapshot.Name) }
	around.after = func(*testenv.Transfer) {
		require.NoError(s, testenv.WaitGone(s.soon(), s.Snapshots.SnapshotV1().VolumeSnapshots(s.Apps), testenv.Named(snapshot.Name)))
		require.NoError(s, testenv.WaitGone(s.soon(), s.Snapshots.SnapshotV1().VolumeSnapshotContents(), testenv.Named(content)))
		require.Equal(s, 1, s.Driver.Deletions(handle), "of the snapshot by the driver")
		require.NotContains(s, s.Driver.Handles(), handle)
		require.Contains(s, s.Driver.Volumes(), s.handleOf(source), "the source")
	}
}

// downloading makes the claim that a DataDownload is for. It gets what was restored, if all went well.
func (s *env) downloading(around *workload, claim string) {
	target, err := s.TargetClaim(s.soon(), claim, s.storageClass)
	require.NoError(s, err)
	restore, err := s.Restore(s.soon(), "of-"+claim)
	require.NoError(s, err)
	around.create = func() string {
		created, err := s.DataDownload(s.soon(), restore, target, "snapshot")
		require.NoError(s, err)
		return created.Name
	}
	around.after = func(ended *testenv.Transfer) {
		if ended.Status.Phase != testenv.Completed {
			require.Empty(s, s.Driver.Volumes())
			return
		}
		bound, err := s.WaitClaim(s.soon(), s.Apps, target.Name, testenv.Bound)
		require.NoError(s, err)
		volume, err := s.WaitVolume(s.soon(), bound.Spec.VolumeName, func(volume *corev1.PersistentVolume) bool {
			return volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
		})
		require.NoError(s, err)
		require.Equal(s, target.UID, volume.Spec.ClaimRef.UID)
		s.restoredTo(ended, s.Driver.VolumeDir(volume.Spec.CSI.VolumeHandle))
		require.NotContains(s, volume.Annotations, api.AnnotationReclaimPolicy)
		require.NotContains(s, volume.Labels, api.LabelMover)
		require.Contains(s, s.Driver.Volumes(), volume.Spec.CSI.VolumeHandle)
	}
}

// alone wants a driver to have no more volumes than one: a source, or what was restored of it.
func (s *env) alone(around *workload) {
	also := around.after
	around.after = func(ended *testenv.Transfer) {
		also(ended)
		require.LessOrEqual(s, len(s.Driver.Volumes()), 1, "volumes without an owner are left")
	}
}

// waitingPod is a restore and a pod that waits for its volume.
type waitingPod struct {
	restore *velerov1.Restore
	target  *corev1.Pod
}

// restores makes a pod that waits in its init container, if it has a node.
func (s *env) restores(node string) waitingPod {
	restore, err := s.Restore(s.soon(), "nightly")
	require.NoError(s, err)
	target, err := s.RestorePod(s.soon(), restore, "restored", node, testenv.EmptyDir("data"))
	require.NoError(s, err)
	return waitingPod{restore: restore, target: target}
}

// restoreOf creates the PodVolumeRestore for it.
func (s *env) restoreOf(r waitingPod, change ...func(*velerov1.PodVolumeRestore)) string {
	created, err := s.PodVolumeRestore(s.soon(), r.restore, r.target, "data", "snapshot", s.Apps, change...)
	require.NoError(s, err)
	return created.Name
}
