package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kubernetes-csi/csi-test/v5/pkg/sanity"
	"github.com/stretchr/testify/require"
)

// The driver runs in a mount namespace of its own, so that nothing is mounted on the machine.
func TestTheDriverIsSane(t *testing.T) {
	dir := t.TempDir()
	binary, socket := filepath.Join(dir, "csi-driver"), filepath.Join(dir, "csi.sock")
	output, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, ".").CombinedOutput()
	require.NoError(t, err, "%s", output)
	driver := exec.CommandContext(t.Context(), "unshare", "--mount", binary, "--data="+filepath.Join(dir, "data"), "--socket="+socket, "--node=node")
	driver.Stdout, driver.Stderr = t.Output(), t.Output()
	require.NoError(t, driver.Start())
	t.Cleanup(func() { _ = driver.Wait() }) // The end of the test's context has killed it.
	config := sanity.NewTestConfig()
	config.Address = socket
	config.TargetPath, config.StagingPath = filepath.Join(dir, "target"), filepath.Join(dir, "staging")
	config.TestNodeVolumeAttachLimit = false
	sanity.Test(t, config)
}
