package stories

import (
	"bufio"
	"bytes"
	"context"
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

// Movers are held up by their backup storage: the S3 server stands still from when the server has made the transfer.

// service kills, revives, freezes or thaws a process of the node.
func service(t *testing.T, act, name string) {
	t.Helper()
	run(t, "realcluster", act, "--bin="+os.Getenv("LATEEN_BIN"), "--dir="+os.Getenv("LATEEN_CLUSTER"), name)
}

// held is a backup whose one mover runs and waits for the S3 server.
type held struct {
	app    *app
	backup string
	mover  string // the pod's name, which that of the next attempt has too
	uid    string
}

// hold makes a backup of an application whose repository is there already, and holds its mover.
func hold(t *testing.T, a *app, backup string) held {
	t.Helper()
	a.backup(backup+"-first", "--default-volumes-to-fs-backup")
	velero(t, "backup", "create", backup, "--include-namespaces="+a.namespace, "--default-volumes-to-fs-backup")
	mover := first(t, "podvolumebackups", "velero.io/backup-name="+backup)
	service(t, "freeze", "versitygw")
	t.Cleanup(func() { service(t, "thaw", "versitygw") })
	wait(t, "jsonpath={.status.phase}=InProgress", "podvolumebackup/"+mover, "--namespace=velero")
	wait(t, "condition=Ready", "pod/"+mover, "--namespace=velero")
	return held{app: a, backup: backup, mover: mover, uid: uid(t, mover)}
}

// ends lets the mover go on, and checks that the backup completes and comes back as it was.
func (h held) ends(t *testing.T) {
	t.Helper()
	service(t, "thaw", "versitygw")
	wait(t, "jsonpath={.status.phase}=Completed", "backup.velero.io/"+h.backup, "--namespace=velero")
	before := h.app.prints()
	h.app.lose()
	h.app.restore(h.backup)
	h.app.ready()
	require.Equal(t, before, h.app.prints())
	noMoverLeft(t)
}

// first is the name of the first object of a kind with a label that there is.
func first(t *testing.T, kind, label string) string {
	t.Helper()
	return until(t, "{.metadata.name}", func(string) bool { return true }, kind, "--selector="+label)
}

// restarted waits until the mover's next attempt runs.
func (h held) restarted(t *testing.T) {
	t.Helper()
	until(t, "{.metadata.uid} {.status.phase}", func(line string) bool {
		return !strings.Contains(line, h.uid) && strings.HasSuffix(line, " Running")
	}, "pods", "--field-selector=metadata.name="+h.mover)
}

// until watches objects in Velero's namespace until one is as wanted, by the fields that a JSONPath prints.
func until(t *testing.T, path string, wanted func(string) bool, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	watching := command(ctx, "kubectl", append([]string{"get", "--namespace=velero", "--watch", "--output=jsonpath=" + path + `{"\n"}`}, args...)...)
	var complaints bytes.Buffer
	watching.Stderr = &complaints
	output, err := watching.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, watching.Start())
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if wanted(lines.Text()) {
			cancel()
			_ = watching.Wait() // It was killed.
			return lines.Text()
		}
	}
	err = watching.Wait()
	require.Fail(t, "nothing was as wanted", "kubectl get %s: %v\n%s", strings.Join(args, " "), err, complaints.String())
	return ""
}

func uid(t *testing.T, pod string) string {
	t.Helper()
	return get(t, "{.metadata.uid}", "pod", pod, "--namespace=velero")
}

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

// newClaimApp is an app whose emptyDir is left out of backups, so that a backup has one mover.
func newClaimApp(t *testing.T, namespace string) *app {
	t.Helper()
	a := newApp(t, namespace)
	kubectl(t, "annotate", "pod", "app", "--namespace="+namespace, "backup.velero.io/backup-volumes-excludes=scratch")
	a.paths = []string{"/claim"}
	return a
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
