package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

func TestTransfersAreCountedByPhaseAndAge(t *testing.T) {
	s := newFixture(t, fault{})
	s.clock.Step(time.Hour)
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	backup := func(node string, phase velerov1.PodVolumeBackupPhase, accepted time.Duration) *velerov1.PodVolumeBackup {
		created := s.backup.DeepCopy()
		created.Spec.Node, created.Status.Phase = node, phase
		if accepted > 0 {
			created.Status.AcceptedTimestamp = new(metav1.NewTime(s.backup.CreationTimestamp.Add(accepted)))
		}
		return created
	}
	found := map[string]metrics.Count{}
	for _, count := range s.Count([]*velerov1.PodVolumeBackup{
		backup(testNode, "", 0),
		backup("", "", 0),
		backup(testNode, velerov1.PodVolumeBackupPhaseAccepted, 0),
		backup(testNode, velerov1.PodVolumeBackupPhasePrepared, 20*time.Minute),
		backup("n2", velerov1.PodVolumeBackupPhasePrepared, 50*time.Minute),
		backup("n2", velerov1.PodVolumeBackupPhaseCompleted, time.Minute),
		backup("n3", velerov1.PodVolumeBackupPhasePrepared, time.Minute), // its own agent counts it
		backup("", velerov1.PodVolumeBackupPhaseFailed, 0),
	}) {
		found[count.Phase] = count
	}
	require.Len(t, found, len(transfer.Phases()))
	require.Equal(t, metrics.Count{
		Kind: "podvolumebackup", Phase: "New", Transfers: 2, OldestAge: 3600, MaxPhaseAge: 3600, Unattended: map[string]int{},
	}, found["New"], "what has no phase yet is New")
	require.InDelta(t, 3600, found["Accepted"].MaxPhaseAge, 0, "without a time it counts from the creation")
	require.Equal(t, metrics.Count{
		Kind: "podvolumebackup", Phase: "Prepared", Transfers: 2, OldestAge: 3600, MaxPhaseAge: 2400, Unattended: map[string]int{"n2": 1},
	}, found["Prepared"])
	require.Equal(t, metrics.Count{
		Kind: "podvolumebackup", Phase: "Completed", Terminal: true, Transfers: 1, OldestAge: 3600, MaxPhaseAge: 3600, Unattended: map[string]int{},
	}, found["Completed"], "a terminal transfer needs no agent")
	require.Equal(t, 1, found["Failed"].Transfers, "the coordinator counts what has no node")
	require.Zero(t, found["InProgress"].Transfers)
}
