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
func (s *env) volumes(options csi.Options) *env {
	s.storageClass = "disk-" + s.Namespace
	require.NoError(s, s.StartDriver(s.soon(), s.storageClass, options))
	return s
}

// claim makes a claim whose volume has data of its own.
func (s *env) claim(name string) *corev1.PersistentVolumeClaim {
	claim, err := s.SourceClaim(s.soon(), name, s.storageClass)
	require.NoError(s, err)
	return claim
}

// handleOf is the driver's name of a claim's volume.
func (s *env) handleOf(claim *corev1.PersistentVolumeClaim) string {
	handle, err := s.VolumeHandle(s.soon(), claim)
	require.NoError(s, err)
	return handle
}

// snapshot takes one of a claim, and returns it when it has a handle.
func (s *env) snapshot(claim *corev1.PersistentVolumeClaim) (snapshot *snapshotv1.VolumeSnapshot, handle string) {
	created, err := s.Snapshot(s.soon(), s.backup, claim, s.storageClass)
	require.NoError(s, err)
	snapshot, handle, err = s.Handle(s.soon(), created)
	require.NoError(s, err)
	return snapshot, handle
}

// upload creates the DataUpload of a snapshot.
func (s *env) upload(claim *corev1.PersistentVolumeClaim, snapshot string) string {
	created, err := s.DataUpload(s.soon(), s.backup, claim, velerov2alpha1.CSISnapshotSpec{
		VolumeSnapshot: snapshot, SnapshotClass: s.storageClass, Driver: s.Driver.Name(),
	})
	require.NoError(s, err)
	return created.Name
}

// uploads makes a claim, its snapshot and its DataUpload.
func (s *env) uploads(claim string) (name, handle string) {
	source := s.claim(claim)
	snapshot, handle := s.snapshot(source)
	return s.upload(source, snapshot.Name), handle
}

// target makes a claim as Velero's server restores one.
func (s *env) target() *corev1.PersistentVolumeClaim {
	claim, err := s.TargetClaim(s.soon(), "restored", s.storageClass)
	require.NoError(s, err)
	return claim
}

// download creates a DataDownload into a claim.
func (s *env) download(target *corev1.PersistentVolumeClaim) string {
	restore, err := s.Restore(s.soon(), "nightly")
	require.NoError(s, err)
	created, err := s.DataDownload(s.soon(), restore, target, "snapshot")
	require.NoError(s, err)
	return created.Name
}

// progresses waits for one step after the other, each of which may take its time, until nobody has anything left to do.
func (s *env) progresses(kind testenv.Kind, name string) (settled *testenv.Transfer) {
	after := func(phases ...testenv.Phase) func(*testenv.Transfer) bool {
		return func(seen *testenv.Transfer) bool { return !slices.Contains(phases, seen.Status.Phase) }
	}
	moved := func(seen *testenv.Transfer) bool {
		return testenv.Ended(seen) || seen.Annotations[api.AnnotationMoved] != ""
	}
	for _, come := range []func(*testenv.Transfer) bool{
		after(""), after("", testenv.Accepted), after("", testenv.Accepted, testenv.Prepared), moved, testenv.Ended, testenv.Settled,
	} {
		var err error
		settled, err = s.Transfers(kind).Wait(s.soon(), name, come)
		require.NoError(s, err)
	}
	return settled
}

// settles waits for the end of a transfer of data, and until nothing is left of what was made for it.
func (s *env) settles(kind testenv.Kind, name string, phase testenv.Phase) *testenv.Transfer {
	ended := s.progresses(kind, name)
	require.Equal(s, phase, ended.Status.Phase, ended.Status.Message)
	if phase == testenv.Completed {
		s.movedAll(ended)
	}
	require.NotNil(s, ended.Status.CompletionTimestamp)
	require.NotContains(s, ended.Labels, api.LabelExposing)
	require.NoError(s, s.WaitPodGone(s.soon(), s.Namespace, name))
	require.NoError(s, s.WaitClaimGone(s.soon(), s.Namespace, name))
	return ended
}

// uploaded is settles for a DataUpload whose snapshot was there: it is deleted, once.
func (s *env) uploaded(name, handle string, phase testenv.Phase) *testenv.Transfer {
	ended := s.settles(testenv.DataUpload, name, phase)
	require.NoError(s, testenv.WaitGone(s.soon(), s.Snapshots.SnapshotV1().VolumeSnapshots(s.Namespace), testenv.Named(name)))
	require.NoError(s, testenv.WaitGone(s.soon(), s.Snapshots.SnapshotV1().VolumeSnapshotContents(), testenv.Named(name)))
	require.Equal(s, 1, s.Driver.Deletions(handle), "of the snapshot by the driver")
	require.NotContains(s, s.Driver.Handles(), handle)
	return ended
}

// noSnapshots wants nothing of snapshots to be left in the namespaces of the environment.
func (s *env) noSnapshots() {
	for _, namespace := range []string{s.Namespace, s.Apps} {
		left, err := s.Snapshots.SnapshotV1().VolumeSnapshots(namespace).List(s.soon(), metav1.ListOptions{})
		require.NoError(s, err)
		require.Empty(s, left.Items)
	}
	contents, err := s.Snapshots.SnapshotV1().VolumeSnapshotContents().List(s.soon(), metav1.ListOptions{})
	require.NoError(s, err)
	for _, content := range contents.Items {
		require.NotEqual(s, s.Driver.Name(), content.Spec.Driver, "content %s is left", content.Name)
	}
}

// movedAll wants a transfer that is Completed to have moved its own data: its mover was given the volume of the pod, or of
// the claim, that it is about, and nothing has changed what was restored since.
func (s *env) movedAll(ended *testenv.Transfer) {
	uploaded, ok := s.Movers.Uploaded(ended.UID)
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
	found, err := node.ReadData(dir)
	require.NoError(s, err)
	require.Equal(s, node.Data(ended.UID, ended.Spec.SnapshotID), found)
}
