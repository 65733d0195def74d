package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestAMoverThatIsLostStartsAgain(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		lose func(s *env, name string) error
		ends bool // by itself, and its pod goes right after it
	}{
		"vanished":  {lose: func(s *env, name string) error { return s.node.Vanish(s.soon(), s.Namespace, name) }},
		"evicted":   {lose: func(s *env, name string) error { return s.node.Evict(s.Namespace, name, "the node is low on memory") }},
		"preempted": {lose: func(s *env, name string) error { return s.node.Preempt(s.Namespace, name, "by a pod of class high") }},
		"deleted": {ends: true, lose: func(s *env, name string) error {
			return s.Kube.CoreV1().Pods(s.Namespace).Delete(s.soon(), name, metav1.DeleteOptions{})
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 0)
			finish := s.work()
			r := s.start()
			backup := s.transfer()
			s.in(backup, testenv.InProgress)
			letGo := func() {}
			if test.ends {
				letGo = s.holds(backup)
			}
			require.NoError(t, test.lose(s, backup))
			s.says("MoverRestarted", "restart 1 of 3")
			letGo()
			finish()
			ended := s.ends(backup, testenv.Completed)
			require.Equal(t, "1", ended.Annotations[api.AnnotationRestarts])
			require.Empty(t, ended.Status.Message)
			require.Equal(t, 2, s.moversMade(backup))
			require.Equal(t, 1, r.metric("lateen_mover_restarts_total", "reason", name))
			require.Equal(t, 1, r.metric("lateen_mover_restarts_total"))
			require.Zero(t, r.metric("lateen_slots_in_use"))
		})
	}
}

func TestATransferGoesBackToAcceptedOnceItsFailedMoverIsGone(t *testing.T) {
	s := newEnv(t, 0)
	finish := s.work()
	s.start()
	backup := s.transfer()
	s.in(backup, testenv.InProgress)
	letGo := s.holds(backup)
	require.NoError(t, s.node.Evict(s.Namespace, backup, "the node is low on memory"))
	s.says("MoverRestarted", "restart 1 of 3")
	seen, err := s.Transfers(testenv.PodVolumeBackup).Get(s.soon(), backup)
	require.NoError(t, err)
	require.Equal(t, testenv.InProgress, seen.Status.Phase, "an agent of Velero would see a failed mover, and cancel")
	require.Equal(t, "1", seen.Annotations[api.AnnotationRestarts])
	require.Contains(t, seen.Status.Message, "low on memory")
	letGo()
	finish()
	ended := s.ends(backup, testenv.Completed)
	require.Equal(t, "1", ended.Annotations[api.AnnotationRestarts])
	require.Equal(t, 2, s.moversMade(backup))
}

func TestAMoverThatIsKilledStartsAgain(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end    node.Result
		reason string
	}{
		"by a signal":                     {node.Result{ExitCode: 137}, "killed"},
		"with its node, says the kubelet": {node.Result{ExitCode: 137, Reason: "ContainerStatusUnknown"}, "vanished"},
		"with its node, says the runtime": {node.Result{ExitCode: 255, Reason: "Unknown"}, "vanished"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			s.node.Faults.Add(node.Fault{Ends: &test.end, Times: 1})
			r := s.start()
			backup := s.transfer()
			ended := s.ends(backup, testenv.Completed)
			require.Equal(t, "1", ended.Annotations[api.AnnotationRestarts])
			require.Equal(t, 2, s.moversMade(backup))
			require.Equal(t, 1, r.metric("lateen_mover_restarts_total", "reason", test.reason))
			s.says("MoverRestarted", "restart 1 of 3")
		})
	}
}

func TestAMoverThatTheKubeletRefusesStartsAgain(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.node.Faults.Add(node.Fault{Times: 2, Refused: &node.Waiting{Reason: "OutOfcpu", Message: "Node didn't have enough resource: cpu"}})
	r := s.start()
	backup := s.transfer()
	s.ends(backup, testenv.Completed)
	require.Equal(t, 3, s.moversMade(backup))
	require.Equal(t, 2, r.metric("lateen_mover_restarts_total", "reason", "refused"))
}

func TestAMoverThatIsLostTooOftenFails(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.node.Faults.Add(node.Fault{Refused: &node.Waiting{Reason: "OutOfpods", Message: "too many pods"}})
	r := s.start(func(options *agent.Options) { options.Limits.Retries = 2 })
	backup := s.transfer()
	ended := s.ends(backup, testenv.Failed)
	require.Contains(t, ended.Status.Message, "OutOfpods")
	require.Contains(t, ended.Status.Message, "given up after 2 restarts")
	require.Equal(t, 3, s.moversMade(backup))
	r.finished("Failed", "mover_lost")
}

func TestAMoverThatIsDeletedBeforeItRunsCountsAsLost(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.node.Faults.Add(node.Fault{NeverStarts: true, Times: 1})
	r := s.start()
	backup := s.transfer()
	s.moverIs(backup, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" && len(pod.Status.ContainerStatuses) > 0 })
	require.NoError(t, s.node.Vanish(s.soon(), s.Namespace, backup))
	ended := s.ends(backup, testenv.Completed)
	require.Equal(t, "1", ended.Annotations[api.AnnotationRestarts])
	require.Equal(t, 1, r.metric("lateen_mover_restarts_total", "reason", "vanished"))
}

func TestAMoverThatTheSchedulerPreemptsWaitsForRoomAndStartsAgainOnKubernetes(t *testing.T) {
	s := newEnv(t, 0)
	finish := s.work()
	low, high := "low-"+s.Namespace, "high-"+s.Namespace
	require.NoError(t, s.PriorityClass(s.soon(), low, 10))
	require.NoError(t, s.PriorityClass(s.soon(), high, 1000))
	s.configure(`{"priorityClassName":"` + low + `","podResources":{"cpuRequest":"40"}}`) // of 64
	r := s.start()
	name := s.transfer()
	s.in(name, testenv.InProgress)
	letGo := s.holds(name)
	rival := s.rival("rival", high, "60")
	_, err := s.WaitPod(s.soon(), s.Apps, rival.Name, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning })
	require.NoError(t, err)
	s.says("MoverRestarted", "restart 1 of 3")
	letGo()
	s.in(name, testenv.Accepted)
	require.NoError(t, s.Kube.CoreV1().Pods(s.Apps).Delete(s.soon(), rival.Name, metav1.DeleteOptions{}))
	finish()
	ended := s.ends(name, testenv.Completed)
	require.Equal(t, "1", ended.Annotations[api.AnnotationRestarts])
	require.Equal(t, 2, s.moversMade(name))
	require.Equal(t, 1, r.metric("lateen_mover_restarts_total", "reason", "preempted"))
	require.Equal(t, 1, r.metric("lateen_mover_restarts_total"))
}

// holds keeps the pod of a mover when it has ended, so that whoever looks late sees how, until what it returns is called.
func (s *env) holds(name string) (letGo func()) {
	finalizers := func(value string) error {
		patch := []byte(`{"metadata":{"finalizers":` + value + `}}`)
		_, err := s.Kube.CoreV1().Pods(s.Namespace).Patch(s.soon(), name, types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	require.NoError(s, finalizers(`["example.com/held"]`))
	return func() {
		s.Helper()
		require.NoError(s, finalizers("null"))
	}
}
