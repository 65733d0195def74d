package stories

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestAMoverGoesOnWhileContainerdRestartsAndTheKubeletIsDead(t *testing.T) {
	h := hold(t, newClaimApp(t, "kubelet"), "kubelet", "podvolumebackups", "--default-volumes-to-fs-backup")
	service(t, "kill", "containerd")
	service(t, "revive", "containerd")
	wait(t, "condition=Ready", "node/node")
	require.Equal(t, h.uid+" Running", get(t, "{.metadata.uid} {.status.phase}", "pod", h.mover, "--namespace=velero"))
	require.Equal(t, "InProgress", get(t, "{.status.phase}", h.kind, h.mover, "--namespace=velero"))
	working := processes(t, h.mover)
	service(t, "kill", "kubelet")
	service(t, "thaw", "versitygw")
	gone(t, working) // It finishes its work, and nobody reports that.
	require.Equal(t, "InProgress", get(t, "{.status.phase}", "podvolumebackup", h.mover, "--namespace=velero"))
	require.Equal(t, h.uid, get(t, "{.metadata.uid}", "pod", h.mover, "--namespace=velero"))
	service(t, "revive", "kubelet")
	h.ends(t)
}

// processes are the numbers, on this machine, of the mover's processes. Only those are taken that are in the cluster's cgroup.
func processes(t *testing.T, mover string) []int {
	t.Helper()
	supervisor, err := os.ReadFile(filepath.Join(os.Getenv("LATEEN_CLUSTER"), "pid"))
	require.NoError(t, err)
	cgroup := "/lateen-cluster-" + strings.TrimSpace(string(supervisor)) + "/"
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	var found []int
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !strings.Contains(string(line), mover) || !strings.HasPrefix(string(line), "/velero") {
			continue // One that has ended meanwhile is no mover that runs.
		}
		memberships, err := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup"))
		if err != nil || !strings.Contains(string(memberships), cgroup) {
			continue
		}
		number, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		require.NoError(t, err)
		found = append(found, number)
	}
	require.NotEmpty(t, found, "no process of mover %s", mover)
	return found
}

// gone waits until no such process is left.
func gone(t *testing.T, processes []int) {
	t.Helper()
	for _, each := range processes {
		process, err := unix.PidfdOpen(each, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		require.NoError(t, err)
		defer unix.Close(process)
		ended, err := unix.Poll([]unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}, int(patience.Milliseconds()))
		require.NoError(t, err)
		require.Equal(t, 1, ended, "process %d is still there", each)
	}
}

// wrong has the CSI driver do something wrong for the rest of the test, or until it is right again: "{}". See test/csidriver.
func wrong(t *testing.T, faults string) {
	t.Helper()
	file := filepath.Join(os.Getenv("LATEEN_CLUSTER"), "csi", "faults.json")
	set := func(faults string) {
		require.NoError(t, os.WriteFile(file+".new", []byte(faults), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	t.Cleanup(func() { set("{}") })
	set(faults)
}

// A volume that one node alone reaches is moved on that node, there and back, although another node is free.
func TestAVolumeThatOneNodeReachesIsMovedThere(t *testing.T) {
	worker(t)
	kubectl(t, "uncordon", "node")
	a := newWorkerApp(t, "pinned", "accessModes:", "storageClassName: pinned\n  accessModes:")
	a.comesBack("datauploads", "datadownloads", "--snapshot-move-data")
	require.Equal(t, "worker", get(t, "{.items[*].status.node}", "datauploads", "--namespace=velero", "--selector=velero.io/backup-name=pinned"))
	require.Equal(t, "worker", get(t, "{.items[*].status.node}", "datadownloads", "--namespace=velero", "--selector=velero.io/restore-name=pinned"))
}
