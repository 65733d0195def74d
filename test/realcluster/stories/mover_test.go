package stories

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestAMoverThatADrainEvictsStartsAgain(t *testing.T) {
	h := hold(t, newClaimApp(t, "drained"), "drained")
	t.Cleanup(func() { kubectl(t, "uncordon", "node") })
	kubectl(t, "drain", "node", "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--pod-selector=velero.io/exclude-from-backup=true")
	kubectl(t, "uncordon", "node")
	h.restarted(t)
	h.ends(t)
}

func TestAMoverGoesOnWhileTheKubeletIsDead(t *testing.T) {
	h := hold(t, newClaimApp(t, "kubelet"), "kubelet")
	working := processes(t, h.mover)
	service(t, "kill", "kubelet")
	service(t, "thaw", "versitygw")
	gone(t, working) // It finishes its work, and nobody reports that.
	require.Equal(t, "InProgress", get(t, "{.status.phase}", "podvolumebackup", h.mover, "--namespace=velero"))
	require.Equal(t, h.uid, uid(t, h.mover))
	service(t, "revive", "kubelet")
	h.ends(t)
}

// What kills it says nothing, as when a node loses its power: no message, and exit status 137.
func TestAMoverThatIsKilledStartsAgain(t *testing.T) {
	h := hold(t, newClaimApp(t, "killed"), "killed")
	victims := processes(t, h.mover)
	for _, each := range victims {
		require.NoError(t, syscall.Kill(each, syscall.SIGKILL))
	}
	gone(t, victims)
	h.restarted(t)
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
