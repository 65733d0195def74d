package stories

import (
	"testing"

	"github.com/stretchr/testify/require"
)

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
	job := get(t, "{.items[0].status.succeeded}", "jobs", "--namespace=velero", "--selector=velero.io/repo-name="+repository)
	require.Equal(t, "1", job)
	a.lose()
	a.restore("kept")
	a.ready()
	require.Equal(t, before, a.prints())
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
	until(t, "{.status.phase} {.spec.nodeName}", func(line string) bool { return line == "Running worker" },
		"pods", "--selector="+jobs)
	service(t, "kill", "worker")
	service(t, "revive", "worker")
	service(t, "thaw", "versitygw")
	until(t, "{.status.failed}", func(failed string) bool { return failed == "1" }, "jobs", "--selector="+jobs)
	failed := until(t, "{.status.recentMaintenance[*].result} {.status.recentMaintenance[-1:].message}", func(line string) bool { return line != " " },
		"backuprepositories", "--field-selector=metadata.name="+repository)
	require.Regexp(t, "^Failed BackoffLimitExceeded", failed)
	back(t)
	wait(t, "jsonpath={.status.containerStatuses[0].restartCount}=1", "pod/app", "--namespace="+a.namespace)
	a.ready()
	before := a.prints()
	a.backup("reboot-job-after", "--default-volumes-to-fs-backup")
	a.lose()
	a.restore("reboot-job-after")
	a.ready()
	require.Equal(t, before, a.prints())
}
