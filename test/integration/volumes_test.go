package integration

import (
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// volumes starts a CSI driver with classes of its own.
func (e *env) volumes(options csi.Options) *env {
	e.storageClass = "disk-" + e.Namespace
	require.NoError(e, e.StartDriver(e.soon(), e.storageClass, options))
	return e
}

// claim makes a claim whose volume has data of its own.
func (e *env) claim(name string) *corev1.PersistentVolumeClaim {
	claim, err := e.SourceClaim(e.soon(), name, e.storageClass)
	require.NoError(e, err)
	return claim
}

// handleOf is the driver's name of a claim's volume.
func (e *env) handleOf(claim *corev1.PersistentVolumeClaim) string {
	handle, err := e.VolumeHandle(e.soon(), claim)
	require.NoError(e, err)
	return handle
}

// snapshot takes one of a claim, and returns it when it has a handle.
func (e *env) snapshot(claim *corev1.PersistentVolumeClaim) (snapshot *snapshotv1.VolumeSnapshot, handle string) {
	created, err := e.Snapshot(e.soon(), e.backup, claim, e.storageClass)
	require.NoError(e, err)
	snapshot, handle, err = e.Handle(e.soon(), created)
	require.NoError(e, err)
	return snapshot, handle
}

// upload creates the DataUpload of a snapshot.
func (e *env) upload(claim *corev1.PersistentVolumeClaim, snapshot string) string {
	created, err := e.DataUpload(e.soon(), e.backup, claim, velerov2alpha1.CSISnapshotSpec{
		VolumeSnapshot: snapshot, SnapshotClass: e.storageClass, Driver: e.Driver.Name(),
	})
	require.NoError(e, err)
	return created.Name
}

// uploads makes a claim, its snapshot and its DataUpload.
func (e *env) uploads(claim string) (name, handle string) {
	source := e.claim(claim)
	snapshot, handle := e.snapshot(source)
	return e.upload(source, snapshot.Name), handle
}

// target makes a claim as Velero's server restores one.
func (e *env) target() *corev1.PersistentVolumeClaim {
	claim, err := e.TargetClaim(e.soon(), "restored", e.storageClass)
	require.NoError(e, err)
	return claim
}

// download creates a DataDownload into a claim.
func (e *env) download(target *corev1.PersistentVolumeClaim) string {
	restore, err := e.Restore(e.soon(), "nightly")
	require.NoError(e, err)
	created, err := e.DataDownload(e.soon(), restore, target, "snapshot")
	require.NoError(e, err)
	return created.Name
}

// settles waits for one step of a transfer after the other, each of which may take its time, until agents have nothing left to
// do for it and its mover is deleted.
func (e *env) settles(kind testenv.Kind, name string, phase testenv.Phase) (ended *testenv.Transfer) {
	after := func(phases ...testenv.Phase) func(*testenv.Transfer) bool {
		return func(seen *testenv.Transfer) bool { return !slices.Contains(phases, seen.Status.Phase) }
	}
	moved := func(seen *testenv.Transfer) bool {
		return testenv.Ended(seen) || seen.Annotations[api.AnnotationMoved] != ""
	}
	for _, step := range []func(*testenv.Transfer) bool{
		after(""), after("", testenv.Accepted), after("", testenv.Accepted, testenv.Prepared), moved, testenv.Ended, testenv.Settled,
	} {
		var err error
		ended, err = e.Transfers(kind).Wait(e.soon(), name, step)
		require.NoError(e, err)
	}
	require.Equal(e, phase, ended.Status.Phase, ended.Status.Message)
	if phase == testenv.Completed {
		e.movedAll(ended)
	}
	require.NotNil(e, ended.Status.CompletionTimestamp)
	require.NotContains(e, ended.Labels, api.LabelExposing)
	require.NoError(e, e.WaitPodGone(e.soon(), e.Namespace, name))
	require.NoError(e, e.WaitClaimGone(e.soon(), e.Namespace, name))
	return ended
}

// uploaded is settles for a DataUpload whose snapshot was there: it is deleted, once.
func (e *env) uploaded(name, handle string, phase testenv.Phase) *testenv.Transfer {
	ended := e.settles(testenv.DataUpload, name, phase)
	require.NoError(e, testenv.WaitGone(e.soon(), e.Snapshots.SnapshotV1().VolumeSnapshots(e.Namespace), testenv.Named(name)))
	require.NoError(e, testenv.WaitGone(e.soon(), e.Snapshots.SnapshotV1().VolumeSnapshotContents(), testenv.Named(name)))
	require.Equal(e, 1, e.Driver.Deletions(handle), "of the snapshot by the driver")
	require.NotContains(e, e.Driver.Handles(), handle)
	return ended
}

// movedAll wants a transfer that is Completed to have moved its own data: its mover was given the volume of the pod, or of
// the claim, that it is about, and nothing has changed what was restored since.
func (e *env) movedAll(ended *testenv.Transfer) {
	uploaded, ok := e.Movers.Uploaded(ended.UID)
	switch testenv.Kind(ended.Kind) {
	case testenv.PodVolumeBackup:
		require.True(e, ok, "no mover has read a volume")
		require.Equal(e, node.Data(ended.Spec.Pod.UID, ""), uploaded)
	case testenv.DataUpload:
		require.True(e, ok, "no mover has read a volume")
		require.Equal(e, node.Data(types.UID(ended.Labels[velerov1.PVCUIDLabel]), ""), uploaded)
	case testenv.PodVolumeRestore:
		pod, err := e.Kube.CoreV1().Pods(ended.Spec.Pod.Namespace).Get(e.soon(), ended.Spec.Pod.Name, metav1.GetOptions{})
		require.NoError(e, err)
		dir, err := e.node.VolumeDir(e.soon(), pod, ended.Spec.Volume)
		require.NoError(e, err)
		e.restoredTo(ended, dir)
	case testenv.DataDownload: // delivered looks into the volume of its target
	}
}

// restoredTo wants a volume to have what a restore has written.
func (e *env) restoredTo(ended *testenv.Transfer, dir string) {
	found, err := node.ReadData(dir)
	require.NoError(e, err)
	require.Equal(e, node.Data(ended.UID, ended.Spec.SnapshotID), found)
}
