package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/cluster"
)

func TestABackupCompletesInThePriorityClass(t *testing.T) {
	s := newSite(t, 50*time.Millisecond)
	class := "low-" + s.Namespace
	require.NoError(t, s.PriorityClass(s.soon(), class, 10))
	s.configure(`{"priorityClassName":"` + class + `"}`)
	history, err := s.Record(t.Context())
	require.NoError(t, err)
	r := s.start()
	name := s.transfer()
	mover := s.moverIs(name, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
	require.Equal(t, class, mover.Spec.PriorityClassName)
	require.EqualValues(t, 10, *mover.Spec.Priority)
	require.Equal(t, "velero", mover.Spec.ServiceAccountName)

	ended := s.ends(name, velerov1.PodVolumeBackupPhaseCompleted)
	require.Equal(t, "snapshot-of-"+name, ended.Status.SnapshotID)
	require.Equal(t, "/"+string(ended.UID), ended.Status.Path)
	require.EqualValues(t, 1000, ended.Status.Progress.BytesDone)
	require.EqualValues(t, 500, ended.Status.IncrementalBytes)
	require.Equal(t, []velerov1.PodVolumeBackupPhase{"", "Accepted", "Prepared", "InProgress", "Completed"}, history.Phases(name))
	require.Equal(t, 1, s.moversMade(name))

	s.says("Accepted", s.node.Name())
	s.says("Completed", "1000 bytes")
	require.Equal(t, 1, r.metric("lateen_priority_class_info", "consumer", "data-mover", "configured", class, "effective", class))
	require.Equal(t, 0, r.metric("lateen_priority_class_fallbacks_total", "consumer", "data-mover", "reason", "not_found"))
	require.Equal(t, 1, r.finished("Completed", "completed"))
	require.Equal(t, 1000, r.metric("lateen_bytes_moved_total"))
	require.Equal(t, 0, r.metric("lateen_slots_in_use"))
	require.Equal(t, 1, r.metric("lateen_transfers", "phase", "Completed"))
	require.Equal(t, 1, r.metric("podVolume_pod_volume_backup_dequeue_count", "node", s.node.Name()))
	require.Contains(t, r.movers.String(), "stand-in mover of "+name)
}

func TestABackupTakesSevenWritesAndFourReadsAtMost(t *testing.T) {
	s := newSite(t, 50*time.Millisecond)
	s.configure(`{}`)
	s.start()
	s.ends(s.transfer(), velerov1.PodVolumeBackupPhaseCompleted) // the agent has started
	before := len(s.requests(cluster.Query{}))
	s.ends(s.transfer(), velerov1.PodVolumeBackupPhaseCompleted)
	var writes, reads []string
	for _, record := range s.requests(cluster.Query{})[before:] {
		switch {
		case record.Resource == "events" || record.Verb == "watch":
		case record.Write():
			writes = append(writes, record.String())
		default:
			reads = append(reads, record.String())
		}
	}
	require.LessOrEqual(t, len(writes), 7+1, "one of them progress: %v", writes)
	require.LessOrEqual(t, len(reads), 4, "%v", reads)
}

func TestAnIdleAgentMakesNoRequest(t *testing.T) {
	s := newSite(t, 50*time.Millisecond)
	s.configure(`{}`)
	s.start()
	s.ends(s.transfer(), velerov1.PodVolumeBackupPhaseCompleted)
	elsewhere := s.transfer(func(b *velerov1.PodVolumeBackup) { b.Spec.Node = "another-node" })
	before := s.requests(cluster.Query{}).Where(cluster.Record.Write)
	require.NoError(t, s.CancelPodVolumeBackup(s.soon(), elsewhere))
	mine := s.transfer()
	s.in(mine, velerov1.PodVolumeBackupPhaseCompleted)
	for _, record := range s.requests(cluster.Query{}).Where(cluster.Record.Write)[len(before):] {
		require.NotEqual(t, elsewhere, record.Name, "the agent touched what is not its own: %s", record)
	}
}
