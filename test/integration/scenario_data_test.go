package integration

import (
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/testenv"
)

// uploading makes a claim and the snapshot for a DataUpload, which at any end is deleted exactly once.
func (s *env) uploading(around *workload, claim string) {
	source := s.claim(claim)
	snapshot, handle := s.snapshot(source)
	content := *snapshot.Status.BoundVolumeSnapshotContentName
	guard := &handleOwner{env: s, original: content, handle: handle}
	around.watch = guard.wrap
	around.create = func() string {
		name := s.upload(source, snapshot.Name)
		guard.of(name)
		return name
	}
	around.after = func(*testenv.Transfer) {
		require.NoError(s, s.WaitSnapshotGone(s.soon(), s.Apps, snapshot.Name))
		require.NoError(s, s.WaitContentGone(s.soon(), content))
		require.Equal(s, 1, s.Driver.Deletions(handle), "of the snapshot by the driver")
		require.NotContains(s, s.Driver.Handles(), handle)
		require.Contains(s, s.Driver.Volumes(), s.handleOf(source), "the source")
		require.NotZero(s, guard.checked(), "the owner of the snapshot was never checked")
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
