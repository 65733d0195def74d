package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

func TestABackupCompletesInThePriorityClassOnKubernetes(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	class := s.class()
	s.configure(`{"priorityClassName":"` + class + `"}`)
	history := s.record()
	r := s.start()
	name := s.transfer()
	mover := s.moverIs(name, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
	require.Equal(t, class, mover.Spec.PriorityClassName)
	require.EqualValues(t, 10, *mover.Spec.Priority)
	require.Equal(t, "velero", mover.Spec.ServiceAccountName)

	ended := s.ends(name, testenv.Completed)
	require.Equal(t, "snapshot-of-"+name, ended.Status.SnapshotID)
	require.Equal(t, "/"+string(ended.UID), ended.Status.Path)
	require.EqualValues(t, 1000, ended.Status.Progress.BytesDone)
	require.EqualValues(t, 500, ended.Status.IncrementalBytes)
	require.Empty(t, ended.Status.Message)
	require.Equal(t, []testenv.Phase{"", "Accepted", "Prepared", "InProgress", "Completed"}, s.path(history, name, "Completed"))
	require.Equal(t, 1, s.moversMade(name))
	require.Contains(t, r.movers.String(), "stand-in mover of "+name)

	s.says("Completed", "1000 bytes")
	require.ElementsMatch(t, []string{"Completed"}, s.eventsOf(name))
	require.Equal(t, 1, r.metric("lateen_priority_class_info", "consumer", "data-mover", "configured", class, "effective", class))
	requireCompletedInMetrics(s, r)
}

// requireCompletedInMetrics wants the one transfer of an environment to be in all metrics that it belongs to.
func requireCompletedInMetrics(s *env, r *agentRun) {
	require.Zero(s, r.metric("lateen_priority_class_fallbacks_total", "consumer", "data-mover", "reason", "not_found"))
	r.finished("Completed", "completed")
	require.Equal(s, 1000, r.metric("lateen_bytes_moved_total"))
	require.Zero(s, r.metric("lateen_slots_in_use"))
	require.Zero(s, r.metric("lateen_mover_restarts_total", "reason", "vanished"))
	for _, phase := range []string{"New", "Accepted", "Prepared", "InProgress"} {
		require.Equal(s, 1, r.metric("lateen_transfer_phase_duration_seconds", "phase", phase), phase)
	}
	require.Equal(s, 1, r.metric("podVolume_pod_volume_backup_dequeue_count", "node", s.node.Name()))
}
