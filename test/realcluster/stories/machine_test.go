package stories

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A machine that cannot run a cluster hears in one line what it lacks, and nothing is started.
func TestAMachineThatLacksSomethingHearsItInOneLine(t *testing.T) {
	program := filepath.Join(os.Getenv("LATEEN_BIN"), "realcluster")
	for lack, test := range map[string]struct {
		enter []string // a namespace in which the machine lacks it
		said  string
	}{
		"root":      {enter: []string{"--user"}, said: "realcluster: a cluster needs root, for mounts and cgroups\n"},
		"cgroups":   {enter: []string{"--mount", "sh", "-c", `umount -l /sys/fs/cgroup && exec "$@"`, "sh"}, said: "realcluster: a cluster needs the cgroup hierarchy \"cpu\" of version 1, which is not mounted here\n"},
		"version 1": {enter: []string{"--mount", "sh", "-c", `umount -l /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup && exec "$@"`, "sh"}, said: "realcluster: a cluster needs cgroups of version 1, and this machine has version 2 alone: boot it with systemd.unified_cgroup_hierarchy=0, if its kernel and its systemd still have version 1\n"},
	} {
		t.Run(lack, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cluster")
			start := exec.CommandContext(t.Context(), "unshare", append(test.enter, program, "start", "--bin="+os.Getenv("LATEEN_BIN"), "--dir="+dir)...)
			output, err := start.CombinedOutput()
			require.Error(t, err)
			require.Equal(t, test.said, string(output))
			require.NoDirExists(t, dir)
		})
	}
}

// A directory that has something else in it is the caller's mistake, and must not be replaced.
func TestADirectoryOfSomethingElseIsNotTouched(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, "mine")
	require.NoError(t, os.WriteFile(mine, nil, 0o600))
	output, err := command(t.Context(), "realcluster", "start", "--bin="+os.Getenv("LATEEN_BIN"), "--dir="+dir).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(output), "is not the directory of a cluster")
	require.FileExists(t, mine)
}

// Velero's own end-to-end suite runs against this cluster: see docs/testing.md. It needs two storage classes of one driver, a class
// for Velero's snapshots, and a bucket of an S3 server whose region is "minio".
func TestTheClusterHasWhatVelerosOwnSuiteNeeds(t *testing.T) {
	classes := strings.Fields(get(t, "{range .items[*]}{.metadata.name}={.provisioner} {end}", "storageclasses"))
	require.Subset(t, classes, []string{"local=csi.lateen.test", "immediate=csi.lateen.test"})
	require.Equal(t, "local", get(t, `{.items[?(@.metadata.annotations.storageclass\.kubernetes\.io/is-default-class=="true")].metadata.name}`, "storageclasses"))
	require.Equal(t, "csi.lateen.test", get(t, "{.items[*].driver}", "volumesnapshotclasses", "--selector=velero.io/csi-volumesnapshot-class=true"))
	wait(t, "jsonpath={.status.phase}=Available", "backupstoragelocation/default", "--namespace=velero")
	require.Equal(t, "minio backups", get(t, "{.spec.config.region} {.spec.objectStorage.bucket}", "backupstoragelocation", "default", "--namespace=velero"))
}
