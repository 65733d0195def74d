package integration

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// full is a storage array that has no room for something.
func full(verb csi.Verb, object string) func(context.Context, csi.Call) error {
	return func(_ context.Context, call csi.Call) error {
		if call.Verb == verb && strings.Contains(call.Object, object) {
			return errors.New("the array is full")
		}
		return nil
	}
}

func TestAnUploadThatIsNotPreparedInTimeSaysWhatWasInTheWayOnKubernetes(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		config  string
		fault   func(context.Context, csi.Call) error
		node    *node.Fault
		sees    func(v *env, upload string) // waits until what is in the way has been reported
		says    []string
		pending bool // the snapshot has no handle when the upload begins
	}{
		"the scheduler's words when there is no room": {config: noRoom, sees: podSays("Insufficient cpu"), says: []string{"mover pod is not scheduled", "Insufficient cpu"}},
		"the kubelet's words when there is no image": {
			node: &node.Fault{Waiting: &node.Waiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image velero/velero"}},
			sees: podSays("ImagePullBackOff"), says: []string{"ImagePullBackOff: Back-off pulling image"},
		},
		"the provisioner's words when there is no volume": {
			fault: full(csi.CreateVolume, "velero-"), sees: provisionerSays, says: []string{"is Pending", "failed to provision volume", "the array is full"},
		},
		"the driver's words when there is no snapshot": {
			fault: full(csi.CreateSnapshot, ""), pending: true, sees: snapshotterSays, says: []string{"is not ready", "the array is full"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			options := csi.Options{}
			var finished atomic.Bool
			if test.fault != nil {
				options.Fault = func(ctx context.Context, call csi.Call) error {
					if finished.Load() || strings.HasPrefix(call.Object, s.Apps+"/") {
						return nil // the source
					}
					return test.fault(ctx, call)
				}
			}
			v := s.volumes(options)
			v.configure(cmp.Or(test.config, `{}`))
			if test.node != nil {
				v.node.Faults.Add(*test.node)
			}
			r := v.start()
			upload := v.uploadOf(test.pending)
			v.reaches(testenv.DataUpload, upload, testenv.Accepted)
			test.sees(v, upload)
			r = r.expire(testenv.DataUpload, upload)
			ended := v.reaches(testenv.DataUpload, upload, testenv.Failed)
			require.Contains(t, ended.Status.Message, "not prepared within 30m0s")
			for _, description := range test.says {
				require.Contains(t, ended.Status.Message, description)
				v.says("Failed", description)
			}
			finished.Store(true) // a driver tries again until it can
			v.settles(testenv.DataUpload, upload, testenv.Failed)
			v.nothingLeft()
			require.NoError(t, testenv.WaitGone(v.soon(), v.Snapshots.SnapshotV1().VolumeSnapshots(v.Apps), metav1.ListOptions{}))
			require.Empty(t, v.Driver.Handles(), "snapshots of the driver")
			r.countsEnd("kind", "dataupload", "phase", "Failed", "reason", "prepare_timeout")
		})
	}
}

// podSays waits for the status of the mover pod.
func podSays(description string) func(v *env, upload string) {
	return func(v *env, upload string) { v.pending(upload, description) }
}

// provisionerSays waits for the Event about a claim that has no volume.
func provisionerSays(v *env, _ string) {
	v.says("ProvisioningFailed", "the array is full")
}

// snapshotterSays waits for the status of the snapshot that an upload consumes.
func snapshotterSays(v *env, _ string) {
	all, err := v.Snapshots.SnapshotV1().VolumeSnapshots(v.Apps).List(v.soon(), metav1.ListOptions{})
	require.NoError(v, err)
	require.Len(v, all.Items, 1)
	_, err = v.WaitSnapshot(v.soon(), v.Apps, all.Items[0].Name, func(s *snapshotv1.VolumeSnapshot) bool {
		return s.Status != nil && s.Status.Error != nil && strings.Contains(ptr.Deref(s.Status.Error.Message, ""), "the array is full")
	})
	require.NoError(v, err)
}

// uploadOf makes a DataUpload of a new claim, whose snapshot may be one that never gets a handle.
func (e *env) uploadOf(pending bool) string {
	if !pending {
		name, _ := e.uploads("data")
		return name
	}
	source := e.claim("data")
	snapshot, err := e.Snapshot(e.soon(), e.backup, source, e.storageClass)
	require.NoError(e, err)
	return e.upload(source, snapshot.Name)
}

func TestADownloadThatIsNotPreparedInTimeSaysWhatTheProvisionerSays(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{Fault: full(csi.CreateVolume, "")})
	r := v.start()
	download := v.download(v.target())
	provisionerSays(v, download)
	r.expire(testenv.DataDownload, download)
	ended := v.settles(testenv.DataDownload, download, testenv.Failed)
	require.Contains(t, ended.Status.Message, "the array is full")
	v.says("Failed", "the array is full")
	v.nothingLeft()
}
