package integration

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	"k8s.io/client-go/transport"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestASnapshotIsUploaded(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond, acknowledged).volumes(csi.Options{})
	v.configure(`{}`)
	history, err := v.Record(t.Context())
	require.NoError(t, err)
	r := v.start()
	name, handle := v.uploads("data")
	ended := v.uploaded(name, handle, testenv.Completed)
	v.noSnapshots()
	v.nothingLeft()
	v.noConflicts()
	require.Equal(t, "snapshot-of-"+name, ended.Status.SnapshotID)
	require.Equal(t, v.node.Name(), ended.Status.Node)
	require.Equal(t, "linux", ended.Status.NodeOS)
	require.EqualValues(t, 1000, ended.Status.Progress.BytesDone)
	require.Empty(t, ended.Status.Message)
	require.Equal(t, string(v.backup.UID), ended.Labels["velero.io/backup-uid"], "labels of Velero's server are lost")
	require.Equal(t, []testenv.Phase{"", "Accepted", "Prepared", "InProgress", "Completed"}, v.path(history, name, "Completed"))
	require.Equal(t, 1, r.metric("lateen_transfers_finished_total", "kind", "dataupload", "phase", "Completed", "reason", "completed"))
	require.Len(t, v.driver.Volumes(), 1, "the source")
}

func TestAnUploadTakesSixteenWritesAndFourReadsAtMost(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{})
	v.configure(`{}`)
	v.start(lateProgress)
	name, handle := v.uploads("first")
	v.uploaded(name, handle, testenv.Completed) // the agent has started
	source := v.claim("second")
	snapshot, handle := v.snapshot(source)
	before := len(v.requests(cluster.Query{}))
	v.uploaded(v.upload(source, snapshot.Name), handle, testenv.Completed)
	writes, reads := counted(v.requests(cluster.Query{})[before:])
	require.Len(t, writes, 16)
	// What is read once more depends on which cache is faster.
	require.LessOrEqual(t, len(reads), 4, "%v", reads)
	v.noConflicts()
}

func TestAnUploadOfAnotherDataMoverIsLeftAlone(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{})
	v.configure(`{}`)
	v.start()
	source := v.claim("data")
	snapshot, handle := v.snapshot(source)
	foreign := v.upload(source, snapshot.Name, func(du *velerov2alpha1.DataUpload) { du.Spec.DataMover = "somebody-elses" })
	require.NoError(t, v.Transfers(testenv.DataUpload).Cancel(v.soon(), foreign))
	name, ours := v.uploads("more")
	v.uploaded(name, ours, testenv.Completed)
	require.Empty(t, v.requests(cluster.Query{Name: foreign}))
	require.Contains(t, v.driver.Handles(), handle)
}

func TestAnUploadThatCanNeverBeginFailsAtOnceAndSaysWhy(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change    func(*velerov2alpha1.DataUpload)
		reason    string
		message   string
		deletions int
	}{
		"of a snapshot of another type": {deletions: 1, reason: "unsupported", message: `snapshot type "Restic" is not supported by Lateen`,
			change: func(du *velerov2alpha1.DataUpload) { du.Spec.SnapshotType = "Restic" }},
		"whose snapshot is gone": {reason: "cannot_run", message: "never-taken does not exist",
			change: func(du *velerov2alpha1.DataUpload) { du.Spec.CSISnapshot.VolumeSnapshot = "never-taken" }},
		"whose claim is gone": {deletions: 1, reason: "cannot_run", message: `persistentvolumeclaims "never-made" not found`,
			change: func(du *velerov2alpha1.DataUpload) { du.Spec.SourcePVC = "never-made" }},
		"whose storage class is gone": {deletions: 1, reason: "cannot_run", message: `storageclasses.storage.k8s.io "never-made" not found`,
			change: func(du *velerov2alpha1.DataUpload) { du.Spec.CSISnapshot.StorageClass = "never-made" }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{})
			v.configure(`{}`)
			r := v.start()
			source := v.claim("data")
			snapshot, handle := v.snapshot(source)
			upload := v.upload(source, snapshot.Name, test.change)
			ended := v.settles(testenv.DataUpload, upload, testenv.Failed)
			require.Contains(t, ended.Status.Message, test.message)
			require.Zero(t, v.moversMade(upload))
			require.Equal(t, 1, r.metric("lateen_transfers_finished_total", "kind", "dataupload", "phase", "Failed", "reason", test.reason))
			v.says("Failed", test.message)
			require.Equal(t, test.deletions, v.driver.Deletions(handle), "of the snapshot by the driver")
		})
	}
}

func TestAnUploadWaitsForItsSnapshotToBeReady(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{ReadyDelay: time.Hour})
	v.configure(`{}`)
	v.start()
	name, handle := v.uploads("data")
	v.reaches(testenv.DataUpload, name, testenv.Accepted)
	require.Zero(t, v.moversMade(name))
	require.NoError(t, v.driver.SetReady(handle))
	v.uploaded(name, handle, testenv.Completed)
	v.noConflicts()
}

func TestAnUploadWithoutSnapshotsInTheClusterFailsAndSaysSo(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{})
	v.configure(`{}`)
	v.start(through(unserved("/apis/snapshot.storage.k8s.io/v1")))
	name, handle := v.uploads("data")
	ended := v.settles(testenv.DataUpload, name, testenv.Failed)
	require.Contains(t, ended.Status.Message, "snapshot.storage.k8s.io is not installed")
	require.Contains(t, v.driver.Handles(), handle)
}

// unserved is an API server that does not know a path.
func unserved(path string) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			if request.URL.Path != path {
				return next.RoundTrip(request)
			}
			return &http.Response{
				StatusCode: http.StatusNotFound, Header: http.Header{}, Request: request, Body: io.NopCloser(strings.NewReader("404 page not found")),
			}, nil
		})
	}
}

func TestAnUploadIsCanceledInWhicheverPhaseItIs(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		ready time.Duration // of the snapshot
		phase testenv.Phase
		begun func(v *volumes) // before it is created
	}{
		"waiting for its snapshot": {ready: time.Hour, phase: testenv.Accepted},
		"waiting for a slot": {phase: testenv.Prepared, begun: func(v *volumes) {
			v.reaches(testenv.PodVolumeBackup, v.transfer(), testenv.InProgress)
		}},
		"being moved": {phase: testenv.InProgress},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v := newEnv(t, time.Minute).volumes(csi.Options{ReadyDelay: test.ready})
			v.configure(`{}`)
			v.start()
			if test.begun != nil {
				test.begun(v)
			}
			upload, handle := v.uploads("data")
			v.reaches(testenv.DataUpload, upload, test.phase)
			if test.phase == testenv.InProgress {
				v.says("Data-Path-Started", upload)
			}
			require.NoError(t, v.Transfers(testenv.DataUpload).Cancel(v.soon(), upload))
			v.uploaded(upload, handle, testenv.Canceled)
		})
	}
}

func TestAnUploadThatIsDeletedWhileItIsMovedLeavesNothing(t *testing.T) {
	v := newEnv(t, time.Minute).volumes(csi.Options{})
	v.configure(`{}`)
	v.start()
	history, err := v.Record(t.Context())
	require.NoError(t, err)
	name, handle := v.uploads("data")
	v.path(history, name, testenv.InProgress)
	v.says("Data-Path-Started", name)
	require.NoError(t, v.Transfers(testenv.DataUpload).Delete(v.soon(), name))
	require.Contains(t, v.path(history, name, testenv.Gone), testenv.Canceled)
	require.NoError(t, v.WaitContentGone(v.soon(), name))
	require.Equal(t, 1, v.driver.Deletions(handle))
	v.noSnapshots()
	v.nothingLeft()
}
