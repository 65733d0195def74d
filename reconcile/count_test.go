package reconcile

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
		created := s.object.DeepCopy()
		created.Spec.Node, created.Status.Phase = node, phase
		if accepted > 0 {
			created.Status.AcceptedTimestamp = new(metav1.NewTime(s.object.CreationTimestamp.Add(accepted)))
			created.Status.StartTimestamp = new(metav1.NewTime(s.object.CreationTimestamp.Add(accepted + time.Minute)))
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
		backup(testNode, velerov1.PodVolumeBackupPhaseInProgress, 29*time.Minute),
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
	require.InDelta(t, 1800, found["InProgress"].MaxPhaseAge, 0)
	require.Zero(t, found["Canceling"].Transfers)
}

func TestHappyPathTakesSevenWritesAndNoReadButTheLog(t *testing.T) {
	s, registry := newFixture(t, fault{}), prometheus.NewRegistry()
	s.Metrics = metrics.New(registry, "test", testNode)
	var phases, logs []string
	s.OnUpdate = func(object *velerov1.PodVolumeBackup, before, after transfer.State) {
		phases = append(phases, fmt.Sprint(object.Name, ": ", before.Phase, " to ", after.Phase))
	}
	s.MoverLog = func(_ context.Context, mover string, text []byte) { logs = append(logs, mover+": "+string(text)) }
	s.run(t)
	require.Equal(t, map[string]int{"patch podvolumebackups": 5, "create pods": 1, "delete pods": 1, "get pods/log": 1}, s.calls)
	require.Equal(t, []string{"b1: New to Accepted", "b1: Accepted to Prepared", "b1: Prepared to InProgress", "b1: InProgress to Completed"}, phases)
	require.Equal(t, []string{"velero/b1: fake logs"}, logs)
	require.Equal(t, []string{"Normal Completed Moved 10 bytes in 1s"}, s.sent())
	families, err := registry.Gather()
	require.NoError(t, err)
	counted := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			if !strings.HasPrefix(name, "lateen_") {
				continue
			}
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			if seconds := metric.GetHistogram(); seconds.GetSampleCount() > 0 {
				counted[name] = seconds.GetSampleSum()
			} else if value := metric.GetCounter().GetValue(); value > 0 {
				counted[name] = value
			}
		}
	}
	require.Equal(t, map[string]float64{
		"lateen_bytes_moved_total podvolumebackup": 10, "lateen_transfers_finished_total podvolumebackup Completed completed": 1,
		"lateen_transfer_phase_duration_seconds podvolumebackup New": 0, "lateen_transfer_phase_duration_seconds podvolumebackup Accepted": 2,
		"lateen_transfer_phase_duration_seconds podvolumebackup Prepared": 1, "lateen_transfer_phase_duration_seconds podvolumebackup InProgress": 1,
	}, counted)
}
