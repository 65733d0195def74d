package stories

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// worker has the second node run for a test that lets it die. New movers run there, as the first node is cordoned until the
// test uncordons it.
func worker(t *testing.T) {
	t.Helper()
	if !strings.Contains(kubectl(t, "get", "nodes", "--output=name"), "node/worker") {
		service(t, "revive", "worker")
	}
	back(t)
	t.Cleanup(func() {
		kubectl(t, "uncordon", "node")
		kubectl(t, "cordon", "worker")
	})
	kubectl(t, "uncordon", "worker")
	kubectl(t, "cordon", "node")
}

// back waits until the worker has what movers need: CSI driver and agent.
func back(t *testing.T) {
	t.Helper()
	wait(t, "create", "node/worker")
	wait(t, "condition=Ready", "node/worker")
	kubectl(t, "rollout", "status", "--namespace=kube-system", "daemonset/csi", "--timeout="+patience.String())
	kubectl(t, "rollout", "status", "--namespace=velero", "daemonset/node-agent", "--timeout="+patience.String())
}

func (h held) isOn(t *testing.T, node string) held {
	t.Helper()
	require.Equal(t, node, get(t, "{.spec.nodeName}", "pod", h.mover, "--namespace=velero"))
	return h
}

// A node that dies takes its pod volumes along, and nothing else: the upload goes on elsewhere. When the node is back, its mover,
// which never ended, must not count. The node counts as lost a minute after the control plane has noticed, which takes it 50 s.
func TestAnUploadGoesOnElsewhereWhenItsNodeDies(t *testing.T) {
	worker(t)
	configure(t, `{"loadConcurrency":{"globalConfig":2}}`) // else the upload would wait for the pod volume
	a := newWorkerApp(t, "death")
	before := a.prints()
	a.backup("death-first", "--snapshot-move-data")
	kubectl(t, "annotate", "pod", "app", "--namespace=death", "backup.velero.io/backup-volumes=scratch")
	velero(t, "backup", "create", "death", "--include-namespaces=death", "--snapshot-move-data")
	h := held{app: a, backup: "death", kind: "datauploads", before: before}.caught(t, "velero.io/backup-name=death").isOn(t, "worker")
	files := first(t, "podvolumebackups", "velero.io/backup-name=death")
	wait(t, "jsonpath={.status.phase}=InProgress", "podvolumebackup/"+files, "--namespace=velero")
	old := processes(t, h.mover)
	kubectl(t, "uncordon", "node")
	service(t, "freeze", "worker")
	t.Cleanup(func() { service(t, "thaw", "worker") })

	failed := until(t, "{.status.phase} {.status.message}", func(line string) bool { return !strings.HasPrefix(line, "InProgress") },
		"podvolumebackups", "--field-selector=metadata.name="+files)
	require.Regexp(t, "^Failed .*node worker", failed)
	h.restarted(t)
	h.isOn(t, "node")
	service(t, "thaw", "versitygw")
	ended(t, "backup", "death", "PartiallyFailed")
	require.Equal(t, []string{"Completed"}, phases(t, "datauploads", "velero.io/backup-name=death"))
	result := get(t, "{.status.snapshotID}", "dataupload", h.mover, "--namespace=velero")

	service(t, "thaw", "worker")
	gone(t, old)
	back(t)
	noMoverLeft(t)
	require.Equal(t, "Completed "+result, get(t, "{.status.phase} {.status.snapshotID}", "dataupload", h.mover, "--namespace=velero"))
	kubectl(t, "uncordon", "worker")
	a.lose()
	a.restore("death", before)
}

func TestTheRepositoryOfABackupIsMaintained(t *testing.T) {
	a := newClaimApp(t, "kept")
	before := a.prints()
	a.backup("kept", "--default-volumes-to-fs-backup")
	repository := first(t, "backuprepositories", "velero.io/volume-namespace=kept")
	kubectl(t, "patch", "backuprepository", repository, "--namespace=velero", "--type=merge", `--patch={"spec":{"maintenanceFrequency":"1s"}}`)
	result := until(t, "{.status.recentMaintenance[-1:].result} {.status.recentMaintenance[-1:].message}", func(line string) bool { return line != " " },
		"backuprepositories", "--field-selector=metadata.name="+repository)
	kubectl(t, "patch", "backuprepository", repository, "--namespace=velero", "--type=merge", `--patch={"spec":{"maintenanceFrequency":"1h"}}`)
	require.Equal(t, "Succeeded ", result)
	wait(t, "condition=Complete", "jobs", "--namespace=velero", "--selector=velero.io/repo-name="+repository)
	volume := get(t, "{.spec.volumeName}", "persistentvolumeclaim", repository+"-cache", "--namespace=velero")
	handle := get(t, "{.spec.csi.volumeHandle}", "persistentvolume", volume)
	cached, err := filepath.Glob(filepath.Join(os.Getenv("LATEEN_CLUSTER"), "csi", "volumes", handle, "data", "kopia", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, cached, "the cache is not in its volume")
	a.lose()
	a.restore("kept", before)
}

// The node of a job's pod reboots while the job works. The run is written down as failed, and neither the repository nor the next
// backup is the worse for it. The next run is due five minutes later, for which this test does not wait.
func TestMaintenanceOutlivesTheRebootOfItsNode(t *testing.T) {
	worker(t)
	a := newWorkerApp(t, "reboot-job")
	kubectl(t, "annotate", "pod", "app", "--namespace="+a.namespace, "backup.velero.io/backup-volumes-excludes=scratch")
	a.backup("reboot-job", "--default-volumes-to-fs-backup")
	repository := first(t, "backuprepositories", "velero.io/volume-namespace=reboot-job")
	service(t, "freeze", "versitygw")
	t.Cleanup(func() { service(t, "thaw", "versitygw") })
	due := func(frequency string) {
		kubectl(t, "patch", "backuprepository", repository, "--namespace=velero", "--type=merge", `--patch={"spec":{"maintenanceFrequency":"`+frequency+`"}}`)
	}
	due("1s")
	t.Cleanup(func() { due("1h") })
	jobs := "velero.io/repo-name=" + repository
	until(t, "{.status.phase} {.spec.nodeName}", func(line string) bool { return line == "Running worker" }, "pods", "--selector="+jobs)
	service(t, "kill", "worker")
	service(t, "revive", "worker")
	service(t, "thaw", "versitygw")
	until(t, "{.status.failed}", func(failed string) bool { return failed == "1" }, "jobs", "--selector="+jobs)
	failed := until(t, "{.status.recentMaintenance[*].result} {.status.recentMaintenance[-1:].message}", func(line string) bool { return line != " " },
		"backuprepositories", "--field-selector=metadata.name="+repository)
	require.Regexp(t, "^Failed (BackoffLimitExceeded|time=.* network is unreachable)", failed, "the kubelet may have kept the last line of its log")
	back(t)
	wait(t, "jsonpath={.status.containerStatuses[0].restartCount}=1", "pod/app", "--namespace="+a.namespace)
	a.ready()
	before := a.prints()
	a.backup("reboot-job-after", "--default-volumes-to-fs-backup")
	a.lose()
	a.restore("reboot-job-after", before)
}
