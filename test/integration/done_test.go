package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/testenv"
)

// TestAFinishedTransferIsLabelledAsDone also shows that the label costs no request: it is in the patch that removes the
// finalizer, or in the only one.
func TestAFinishedTransferIsLabelledAsDone(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.start()
	completed := s.ends(s.transfer(), testenv.Completed)
	require.Equal(t, "true", completed.Labels[api.LabelDone])
	canceled := s.ends(s.transfer(func(backup *velerov1.PodVolumeBackup) { backup.Spec.Cancel = true }), testenv.Canceled)
	require.Equal(t, "true", canceled.Labels[api.LabelDone], "it was never accepted")
	require.Len(t, s.requests(cluster.Query{Verbs: []string{"patch"}, Name: canceled.Name}), 1)
}

// TestTheCoordinatorLabelsWhatOtherAgentsFinished: agents of Velero, and older ones of Lateen, set no label.
func TestTheCoordinatorLabelsWhatOtherAgentsFinished(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	finished := s.transferIn("node-of-velero")
	require.NoError(t, s.Transfers(testenv.PodVolumeBackup).Patch(s.soon(), finished.Name, `{"status":{"phase":"Completed"}}`))
	s.start(sweeps)
	transfers := s.Transfers(testenv.PodVolumeBackup)
	require.NoError(t, transfers.WaitNone(s.soon(), api.SelectUndone))
	labelled, err := transfers.Get(s.soon(), finished.Name)
	require.NoError(t, err)
	require.Equal(t, testenv.Completed, labelled.Status.Phase)
	require.Equal(t, string(s.backup.UID), labelled.Labels[velerov1.BackupUIDLabel], "labels of Velero's server are lost")
}
