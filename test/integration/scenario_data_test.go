package integration

import (
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/api"
	"github.com/lateen-project/lateen/test/testenv"
)

// uploading makes a claim and the snapshot for a DataUpload, which at any end is deleted exactly once.
func (v *env) uploading(around *workload, claim string) {
	source := v.claim(claim)
	snapshot, handle := v.snapshot(source)
	content := *snapshot.Status.BoundVolumeSnapshotContentName
	guard := &handleOwner{env: v, original: content, handle: handle}
	around.watch = guard.wrap
	around.create = func() string {
		name := v.upload(source, snapshot.Name)
		guard.of(name)
		return name
	}
	around.after = func(*testenv.Transfer) {
		require.NoError(v, v.WaitSnapshotGone(v.soon(), v.Apps, snapshot.Name))
		require.NoError(v, v.WaitContentGone(v.soon(), content))
		require.Equal(v, 1, v.Driver.Deletions(handle), "of the snapshot by the driver")
		require.NotContains(v, v.Driver.Handles(), handle)
		require.Contains(v, v.Driver.Volumes(), v.handleOf(source), "the source")
		require.NotZero(v, guard.checked(), "nobody has looked after the snapshot")
	}
}

// downloading makes the claim that a DataDownload is for. It gets what was restored, if all went well.
func (v *env) downloading(around *workload, claim string) {
	target, err := v.TargetClaim(v.soon(), claim, v.storageClass)
	require.NoError(v, err)
	restore, err := v.Restore(v.soon(), "of-"+claim)
	require.NoError(v, err)
	around.create = func() string {
		created, err := v.DataDownload(v.soon(), restore, target, "snapshot")
		require.NoError(v, err)
		return created.Name
	}
	around.after = func(ended *testenv.Transfer) {
		if ended.Status.Phase != testenv.Completed {
			require.Empty(v, v.Driver.Volumes())
			return
		}
		bound, err := v.WaitClaim(v.soon(), v.Apps, target.Name, testenv.Bound)
		require.NoError(v, err)
		volume, err := v.WaitVolume(v.soon(), bound.Spec.VolumeName, func(volume *corev1.PersistentVolume) bool {
			return volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
		})
		require.NoError(v, err)
		require.Equal(v, target.UID, volume.Spec.ClaimRef.UID)
		v.restoredTo(ended, v.Driver.VolumeDir(volume.Spec.CSI.VolumeHandle))
		require.NotContains(v, volume.Annotations, api.AnnotationReclaimPolicy)
		require.NotContains(v, volume.Labels, api.LabelMover)
		require.Contains(v, v.Driver.Volumes(), volume.Spec.CSI.VolumeHandle)
	}
}

// alone wants a driver to have no more volumes than one: a source, or what was restored of it.
func (v *env) alone(around *workload) {
	also := around.after
	around.after = func(ended *testenv.Transfer) {
		also(ended)
		require.LessOrEqual(v, len(v.Driver.Volumes()), 1, "volumes of nobody are left")
	}
}
