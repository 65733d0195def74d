package e2e

import (
	"flag"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/asciicast"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/process"
	"github.com/lateen-project/lateen/test/testenv"
)

var record = flag.String("record", "", "file for what lateen status --watch shows during the demo, as asciicast v2")

// recorded runs `lateen status --watch` until the end of the demo, if that is to be recorded. The file of an earlier
// recording stays if an act fails.
func (d *demo) recorded(t *testing.T) {
	t.Helper()
	if *record == "" {
		return
	}
	binary, err := cluster.FindBinary("lateen")
	require.NoError(t, err)
	kubeconfig, err := d.Kubeconfig(t.Context(), "velero")
	require.NoError(t, err)
	status := exec.Command(binary, "status", "--watch", "--namespace="+d.Namespace, "--kubeconfig="+kubeconfig)
	shown, failure := asciicast.NewRecorder("lateen status --watch during make demo", "Velero in namespace "), &strings.Builder{}
	status.Stdout, status.Stderr = shown, failure
	running, err := process.Start(status)
	require.NoError(t, err)
	t.Cleanup(func() {
		select {
		case <-running.Ended():
			require.Failf(t, "lateen status --watch ended before the demo", "%v: %s", running.Err(), failure)
		default:
		}
		require.NoError(t, running.Signal(syscall.SIGINT))
		select {
		case <-running.Ended():
		case <-time.After(testenv.Patience):
			require.NoError(t, running.Kill())
		}
		require.EqualError(t, running.Err(), "exit status 0", failure)
		if t.Failed() {
			return
		}
		text, err := shown.File()
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(*record, text, 0o644))
	})
}
