package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/transport"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

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
			r := v.start()
			source := v.claim("data")
			snapshot, handle := v.snapshot(source)
			upload := v.upload(source, snapshot.Name, test.change)
			ended := v.settles(testenv.DataUpload, upload, testenv.Failed)
			require.Contains(t, ended.Status.Message, test.message)
			require.Zero(t, v.moversMade(upload))
			r.countsEnd("kind", "dataupload", "phase", "Failed", "reason", test.reason)
			v.says("Failed", test.message)
			require.Equal(t, test.deletions, v.Driver.Deletions(handle), "of the snapshot by the driver")
		})
	}
}

func TestAnUploadWaitsForItsSnapshotToBeReady(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{ReadyDelay: time.Hour})
	v.start()
	name, handle := v.uploads("data")
	v.reaches(testenv.DataUpload, name, testenv.Accepted)
	require.Zero(t, v.moversMade(name))
	require.NoError(t, v.Driver.SetReady(handle))
	v.uploaded(name, handle, testenv.Completed)
	v.noConflicts()
}

func TestAnUploadWithoutSnapshotsInTheClusterFailsAndSaysSo(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{})
	v.start(fixture.Through(unserved("/apis/snapshot.storage.k8s.io/v1")))
	name, handle := v.uploads("data")
	ended := v.settles(testenv.DataUpload, name, testenv.Failed)
	require.Contains(t, ended.Status.Message, "snapshot.storage.k8s.io is not installed")
	require.Contains(t, v.Driver.Handles(), handle)
}

// unserved is an API server that does not know a path.
func unserved(path string) transport.WrapperFunc {
	is := func(request *http.Request) bool { return request.URL.Path == path }
	return refusingWhere(is, http.StatusNotFound, metav1.StatusReasonNotFound, "404 page not found")
}

func TestAnUploadIsCanceledInWhicheverPhaseItIs(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		ready time.Duration // of the snapshot
		phase testenv.Phase
		begun func(v *env) // before it is created
	}{
		"waiting for its snapshot": {ready: time.Hour, phase: testenv.Accepted},
		"waiting for a slot": {phase: testenv.Prepared, begun: func(v *env) {
			v.reaches(testenv.PodVolumeBackup, v.transfer(), testenv.InProgress)
		}},
		"being moved": {phase: testenv.InProgress},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			v := newEnv(t, time.Minute).volumes(csi.Options{ReadyDelay: test.ready})
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
