package integration

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/world"
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

func TestAnUploadThatIsNotPreparedInTimeSaysWhatWasInTheWay(t *testing.T) {
	tests := map[string]struct {
		config  string
		fault   func(context.Context, csi.Call) error
		node    *node.Fault
		says    []string
		pending bool // the snapshot has no handle when the upload begins
	}{
		"the scheduler's words when there is no room": {config: noRoom, says: []string{"mover pod is not scheduled", "Insufficient cpu"}},
		"the kubelet's words when there is no image": {
			node: &node.Fault{Waiting: &node.Waiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image velero/velero"}},
			says: []string{"ImagePullBackOff: Back-off pulling image"},
		},
		"the provisioner's words when there is no volume": {
			fault: full(csi.CreateVolume, "velero-"), says: []string{"is Pending", "failed to provision volume", "the array is full"},
		},
		"the driver's words when there is no snapshot": {
			fault: full(csi.CreateSnapshot, ""), pending: true, says: []string{"is not ready", "the array is full"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, 50*time.Millisecond)
			options := csi.Options{}
			var over atomic.Bool
			if test.fault != nil {
				options.Fault = func(ctx context.Context, call csi.Call) error {
					if over.Load() || strings.HasPrefix(call.Object, s.Apps+"/") {
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
			r := v.start(shortPrepare)
			upload := v.uploadOf(test.pending)
			ended := v.reaches(world.DataUpload, upload, world.Failed)
			require.Contains(t, ended.Status.Message, "not prepared within 2s")
			for _, words := range test.says {
				require.Contains(t, ended.Status.Message, words)
				v.says("Failed", words)
			}
			over.Store(true) // a driver tries again until it can
			v.settles(world.DataUpload, upload, world.Failed)
			v.noSnapshots()
			require.Equal(t, 1, r.metric("lateen_transfers_finished_total", "kind", "dataupload", "phase", "Failed", "reason", "prepare_timeout"))
		})
	}
}

// uploadOf makes a DataUpload of a new claim, whose snapshot may be one that never gets a handle.
func (v *volumes) uploadOf(pending bool) string {
	v.Helper()
	if !pending {
		name, _ := v.uploads("data")
		return name
	}
	source := v.claim("data")
	snapshot, err := v.Snapshot(v.soon(), v.backup, source, v.snapshots)
	require.NoError(v, err)
	return v.upload(source, snapshot.Name)
}

func TestADownloadThatIsNotPreparedInTimeSaysWhatTheProvisionerSays(t *testing.T) {
	v := newSite(t, 50*time.Millisecond).volumes(csi.Options{Fault: full(csi.CreateVolume, "")})
	v.configure(`{}`)
	v.start(shortPrepare)
	ended := v.settles(world.DataDownload, v.download(v.target()), world.Failed)
	require.Contains(t, ended.Status.Message, "the array is full")
	v.says("Failed", "the array is full")
	v.nothingLeft()
}
