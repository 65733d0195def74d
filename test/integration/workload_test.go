package integration

import (
	"net/http"
	"slices"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/transport"

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
	watch  transport.WrapperFunc         // of the agents' requests: what has to hold after each
}

// workload prepares all but the resource.
func (s *env) workload(kind testenv.Kind) *workload {
	around := &workload{
		env: s, kind: kind, after: func(*testenv.Transfer) {}, watch: func(next http.RoundTripper) http.RoundTripper { return next },
	}
	switch kind {
	case testenv.PodVolumeBackup:
		around.create = func() string { return s.transfer() }
	case testenv.PodVolumeRestore:
		waiting := s.restores(s.node.Name())
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
