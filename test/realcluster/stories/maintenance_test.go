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
