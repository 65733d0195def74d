package stories

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAFileSystemBackupOfAnEmptyDirAndAClaimComesBack(t *testing.T) {
	a := newApp(t, "shop")
	before := a.prints()
	a.backup("shop-files", "--default-volumes-to-fs-backup")
	require.Equal(t, []string{"Completed", "Completed"}, phases(t, "podvolumebackups", "velero.io/backup-name=shop-files"))
	a.lose()
	a.restore("shop-files")
	a.ready()
	require.Equal(t, []string{"Completed", "Completed"}, phases(t, "podvolumerestores", "velero.io/restore-name=shop-files"))
	require.Equal(t, before, a.prints())
	noMoverLeft(t)
}

func TestTheDataOfASnapshotIsMovedThereAndBack(t *testing.T) {
	a := newApp(t, "bank")
	a.paths = []string{"/claim"} // an emptyDir has no snapshot
	before := a.prints()
	a.backup("bank-data", "--snapshot-move-data")
	require.Equal(t, []string{"Completed"}, phases(t, "datauploads", "velero.io/backup-name=bank-data"))
	a.lose()
	require.Empty(t, get(t, "{.items[*].metadata.name}", "volumesnapshotcontents"), "a snapshot whose data is moved does not stay")
	a.restore("bank-data")
	a.ready()
	require.Equal(t, []string{"Completed"}, phases(t, "datadownloads", "velero.io/restore-name=bank-data"))
	require.Equal(t, before, a.prints())
	noMoverLeft(t)
}

// noMoverLeft waits until no pod and no claim of a transfer is left in Velero's namespace.
func noMoverLeft(t *testing.T) {
	t.Helper()
	wait(t, "delete", "pods,persistentvolumeclaims", "--namespace=velero", "--selector=velero.io/exclude-from-backup=true")
}
