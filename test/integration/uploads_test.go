package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/world"
)

func TestASnapshotIsUploaded(t *testing.T) {
	v := newSite(t, 50*time.Millisecond, heard).volumes(csi.Options{})
	v.configure(`{}`)
	history, err := v.Record(t.Context())
	require.NoError(t, err)
	r := v.start()
	name, handle := v.uploads("data")
	ended := v.uploaded(name, handle, world.Completed)
	v.noSnapshots()
	v.nothingLeft()
	v.noConflicts()
	require.Equal(t, "snapshot-of-"+name, ended.Status.SnapshotID)
	require.Equal(t, v.node.Name(), ended.Status.Node)
	require.Equal(t, "linux", ended.Status.NodeOS)
	require.EqualValues(t, 1000, ended.Status.Progress.BytesDone)
	require.Empty(t, ended.Status.Message)
	require.Equal(t, string(v.backup.UID), ended.Labels["velero.io/backup-uid"], "labels of Velero's server are lost")
	require.Equal(t, []world.Phase{"", "Accepted", "Prepared", "InProgress", "Completed"}, v.path(history, name, "Completed"))
	require.Equal(t, 1, r.metric("lateen_transfers_finished_total", "kind", "dataupload", "phase", "Completed", "reason", "completed"))
	require.Len(t, v.driver.Volumes(), 1, "the source")
}

func TestAnUploadTakesSixteenWritesAndSixReadsAtMost(t *testing.T) {
	v := newSite(t, 50*time.Millisecond).volumes(csi.Options{})
	v.mover.Silent = true // what it says costs a write each time
	v.configure(`{}`)
	v.start()
	name, handle := v.uploads("first")
	v.uploaded(name, handle, world.Completed) // the agent has started
	source := v.claim("second")
	snapshot, handle := v.snapshot(source)
	before := len(v.requests(cluster.Query{}))
	v.uploaded(v.upload(source, snapshot.Name), handle, world.Completed)
	writes, reads := counted(v.requests(cluster.Query{})[before:])
	require.LessOrEqual(t, len(writes), 16, "%v", writes)
	require.LessOrEqual(t, len(reads), 6, "%v", reads)
	v.noConflicts()
}
