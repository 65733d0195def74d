package integration

import (
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// workload is what a transfer of a kind needs around it.
type workload struct {
	*env
	kind   testenv.Kind
	create func() string // the resource
}

// workload prepares all but the resource.
func (e *env) workload(kind testenv.Kind) *workload {
	around := &workload{env: e, kind: kind}
	switch kind {
	case testenv.PodVolumeBackup:
		around.create = func() string { return e.transfer() }
	case testenv.PodVolumeRestore:
		waiting := e.restores(e.node.Name())
		_, err := e.WaitPod(e.soon(), e.Apps, waiting.target.Name, testenv.WaitsForRestore)
		require.NoError(e, err)
		around.create = func() string { return e.restoreOf(waiting) }
	case testenv.DataUpload:
		source := e.volumes(csi.Options{}).claim("data")
		snapshot, _ := e.snapshot(source)
		around.create = func() string { return e.upload(source, snapshot.Name) }
	default:
		require.Fail(e, "no such scene", kind)
	}
	return around
}

// ends waits for the end of the transfer and for what has to be true of any: nothing is left.
func (w *workload) ends(name string, phase testenv.Phase) *testenv.Transfer {
	ended := w.settles(w.kind, name, phase)
	w.nothingLeft()
	if w.Driver != nil {
		require.Eventually(w, func() bool { return len(w.Driver.Handles()) == 0 }, testenv.Patience, 10*time.Millisecond, "snapshots are left")
		require.LessOrEqual(w, len(w.Driver.Volumes()), 1, "volumes without an owner are left")
	}
	return ended
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
		require.NoError(e, e.Moved(e.soon(), ended))
	}
	require.NotNil(e, ended.Status.CompletionTimestamp)
	require.NotContains(e, ended.Labels, api.LabelExposing)
	require.NoError(e, e.WaitPodGone(e.soon(), e.Namespace, name))
	require.NoError(e, e.WaitClaimGone(e.soon(), e.Namespace, name))
	return ended
}
