package stories

import (
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

// All processes of the node are gone at once, and it starts again: before the control plane knows that it was away.
func reboots(t *testing.T, h held) {
	t.Helper()
	service(t, "kill", "worker")
	service(t, "revive", "worker")
	h.restarted(t)
	back(t)
	h.isOn(t, "worker").ends(t)
}

func TestAPodVolumeBackupOutlivesTheRebootOfItsNode(t *testing.T) {
	worker(t)
	a := newWorkerApp(t, "reboot-pvb")
	kubectl(t, "annotate", "pod", "app", "--namespace="+a.namespace, "backup.velero.io/backup-volumes-excludes=scratch")
	reboots(t, hold(t, a, "reboot-pvb").isOn(t, "worker"))
}

func TestAPodVolumeRestoreOutlivesTheRebootOfItsNode(t *testing.T) {
	worker(t)
	a := newWorkerApp(t, "reboot-pvr")
	kubectl(t, "annotate", "pod", "app", "--namespace="+a.namespace, "backup.velero.io/backup-volumes-excludes=scratch")
	reboots(t, holdRestore(t, a, "reboot-pvr", "podvolumerestores", "--default-volumes-to-fs-backup").isOn(t, "worker"))
}

func TestADataUploadOutlivesTheRebootOfItsNode(t *testing.T) {
	worker(t)
	reboots(t, holdUpload(t, newWorkerApp(t, "reboot-du"), "reboot-du").isOn(t, "worker"))
}

func TestADataDownloadOutlivesTheRebootOfItsNode(t *testing.T) {
	worker(t)
	reboots(t, holdRestore(t, newWorkerApp(t, "reboot-dd"), "reboot-dd", "datadownloads", "--snapshot-move-data").isOn(t, "worker"))
}

// A node that dies takes its pod volumes along, and nothing else: the upload goes on elsewhere. When the node is back, its
// mover, which never ended, must not count. The node counts as lost a minute after the control plane has noticed, which
// takes it 50 s.
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
	a.restore("death")
	a.ready()
	require.Equal(t, before, a.prints())
}
