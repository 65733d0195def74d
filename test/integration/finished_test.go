package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/testenv"
)

// TestFinishedTransfersAreDeletedWithTheirOwnersEnd: Velero reads a DataUpload until its Backup is done, and a
// DataDownload until its Restore is. PodVolumeBackups are never deleted: the deletion of a backup reads them.
func TestFinishedTransfersAreDeletedWithTheirOwnersEnd(t *testing.T) {
	v := newEnv(t, 50*time.Millisecond).volumes(csi.Options{})
	v.start(func(options *agent.Options) {
		options.Flags.FinishedTTL, options.OrphanSweep = time.Second, 200*time.Millisecond
	})
	podVolume := v.ends(v.transfer(), testenv.Completed).Name
	upload, _ := v.uploads("data")
	v.settles(testenv.DataUpload, upload, testenv.Completed)
	download := v.download(v.target())
	v.settles(testenv.DataDownload, download, testenv.Completed)
	reads := func(resource, name string) func() bool {
		return func() bool {
			return len(v.requests(cluster.Query{Verbs: []string{"get"}, Resources: []string{resource}, Name: name})) > 1
		}
	}
	for resource, name := range map[string]string{"backups": v.backup.Name, "restores": "nightly"} {
		require.Eventually(t, reads(resource, name), testenv.Patience, 100*time.Millisecond, "two sweeps have read the owner")
	}
	for kind, name := range map[testenv.Kind]string{testenv.DataUpload: upload, testenv.DataDownload: download} {
		_, err := v.Transfers(kind).Get(v.soon(), name)
		require.NoError(t, err, "its owner is in progress")
	}
	done := []byte(`{"status":{"phase":"Completed"}}`)
	_, err := v.Backups().Patch(v.soon(), v.backup.Name, types.MergePatchType, done, metav1.PatchOptions{})
	require.NoError(t, err)
	_, err = v.Restores().Patch(v.soon(), "nightly", types.MergePatchType, done, metav1.PatchOptions{})
	require.NoError(t, err)
	require.NoError(t, v.Transfers(testenv.DataUpload).WaitGone(v.soon(), upload))
	require.NoError(t, v.Transfers(testenv.DataDownload).WaitGone(v.soon(), download))
	_, err = v.Transfers(testenv.PodVolumeBackup).Get(v.soon(), podVolume)
	require.NoError(t, err)
}
