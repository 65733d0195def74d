package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// impatient has agents report at once what a clean-up waits for.
func impatient(options *agent.Options) { options.Limits.CleanUpWarning = 0 }

func TestACleanUpThatWaitsForItsDriverSaysSoOnKubernetes(t *testing.T) {
	repaired := make(chan struct{})
	v := newEnv(t, time.Minute).volumes(csi.Options{Fault: func(_ context.Context, call csi.Call) error {
		if call.Verb != csi.DeleteSnapshot {
			return nil
		}
		select {
		case <-repaired:
			return nil
		default:
			return errors.New("the array is busy")
		}
	}})
	v.start(impatient)
	upload, handle := v.uploads("data")
	v.reaches(testenv.DataUpload, upload, testenv.InProgress)
	require.NoError(t, v.Transfers(testenv.DataUpload).Cancel(v.soon(), upload))
	v.says("CleanUpWaits", "kubectl describe volumesnapshotcontent "+upload)
	viewer := v.viewer(true)
	require.Contains(t, v.prints(viewer, "explain", "du/"+upload), "kubectl describe volumesnapshotcontent "+upload)
	require.Contains(t, v.prints(viewer, "status"), "its snapshot is not deleted yet")

	close(repaired)
	v.uploaded(upload, handle, testenv.Canceled)
	require.Equal(t, 1, strings.Count(strings.Join(v.eventsOf(upload), " "), "CleanUpWaits"))
}
