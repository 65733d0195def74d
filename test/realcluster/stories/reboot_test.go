package stories

import "testing"

// All processes of the node are gone at once, and it starts again: before the control plane knows that it was away.
func reboots(t *testing.T, h held) {
	t.Helper()
	service(t, "kill", "worker")
	service(t, "revive", "worker")
	h.restarted(t)
	back(t)
	h.isOn(t, "worker").ends(t)
}

func TestAPodVolumeRestoreOutlivesTheRebootOfItsNode(t *testing.T) {
	worker(t)
	a := newWorkerApp(t, "reboot-pvr")
	kubectl(t, "annotate", "pod", "app", "--namespace="+a.namespace, "backup.velero.io/backup-volumes-excludes=scratch")
	reboots(t, holdRestore(t, a, "reboot-pvr", "podvolumerestores", "--default-volumes-to-fs-backup").isOn(t, "worker"))
}

func TestADataUploadOutlivesTheRebootOfItsNode(t *testing.T) {
	worker(t)
	reboots(t, hold(t, newWorkerApp(t, "reboot-du"), "reboot-du", "datauploads", "--snapshot-move-data").isOn(t, "worker"))
}
