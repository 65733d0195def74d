package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1shared "github.com/vmware-tanzu/velero/pkg/apis/velero/shared"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestAMoverThatFailsAtWorkKeepsItsProgressOnKubernetes(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond, acknowledged)
	s.Movers.Result = &node.Result{ExitCode: 1, Message: "disk on fire"}
	r := s.start()
	name := s.transfer()
	ended := s.ends(name, testenv.Failed)
	require.Equal(t, "disk on fire (exit code 1)", ended.Status.Message)
	require.Equal(t, velerov1shared.DataMoveOperationProgress{TotalBytes: 1000, BytesDone: 500}, ended.Status.Progress)
	r.finished("Failed", "mover_failed")
	require.Zero(t, r.metric("lateen_slots_in_use"))
	s.says("MoverLog", "ends with exit code 1")
	require.ElementsMatch(t, []string{"Failed", "MoverLog"}, s.eventsOf(name))
}

func TestAMoverThatSucceedsBeforeItsStartHasFailed(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.node.Faults.Add(node.Fault{Ends: &node.Result{Message: `{"snapshotID":"x"}`}})
	k := newKiller(3, false) // nobody sees it run
	first := s.start(fixture.Through(k.wrap))
	name := s.transfer()
	<-k.struck
	first.stop()
	s.moverIs(name, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	r := s.start()
	ended := s.ends(name, testenv.Failed)
	require.Contains(t, ended.Status.Message, "mover ended before its start")
	require.Empty(t, ended.Status.SnapshotID)
	r.finished("Failed", "mover_failed")
	require.Equal(t, 1, s.moversMade(name))
}

func TestAMoverWhoseResultCannotBeReadHasFailedOnKubernetes(t *testing.T) {
	t.Parallel()
	for name, message := range map[string]string{"garbage": "Segmentation fault", "nothing": "", "no snapshot": `{"totalBytes":5}`} {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			s.Movers.Result = &node.Result{Message: message}
			r := s.start()
			ended := s.ends(s.transfer(), testenv.Failed)
			require.Contains(t, ended.Status.Message, "its result is unreadable")
			require.Empty(t, ended.Status.SnapshotID)
			r.finished("Failed", "result_unreadable")
			s.says("MoverLog", "stand-in mover of "+ended.Name)
			require.Contains(t, r.movers.String(), "stand-in mover of "+ended.Name)
		})
	}
}

func TestABackupOfAPodThatIsGoneFails(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(s *env){
		"and nothing has its name": func(s *env) {
			require.NoError(s, s.Kube.CoreV1().Pods(s.Apps).Delete(s.soon(), s.source.Name, metav1.DeleteOptions{}))
			require.NoError(s, s.WaitPodGone(s.soon(), s.Apps, s.source.Name))
		},
		"and another one has its name": func(s *env) { s.source.UID = "of-a-pod-that-had-the-name-before" },
	} {
		t.Run(name, func(t *testing.T) { failsWithoutSource(newEnv(t, 50*time.Millisecond), lose) })
	}
}

func failsWithoutSource(s *env, lose func(s *env)) {
	r := s.start()
	lose(s)
	name := s.transfer()
	ended := s.ends(name, testenv.Failed)
	require.Contains(s, ended.Status.Message, "does not exist any more")
	require.Zero(s, s.moversMade(name))
	r.finished("Failed", "source_gone")
}

func TestNoMoreMoversWorkThanThereAreSlots(t *testing.T) {
	s := newEnv(t, 0)
	finish := s.work()
	s.configure(`{"loadConcurrency":{"globalConfig":2}}`)
	history := s.record()
	r := s.start()
	names := make([]string, 5)
	for i := range names {
		names[i] = s.transfer()
	}
	_, err := history.Until(s.soon(), func([]testenv.Transition) bool { return history.MostAtOnce(s.node.Name(), "InProgress") == 2 })
	require.NoError(t, err)
	finish()
	for _, name := range names {
		s.ends(name, testenv.Completed)
	}
	require.Equal(t, 2, history.MostAtOnce(s.node.Name(), "InProgress", "Canceling"))
	require.Equal(t, 2, r.metric("lateen_slots_limit"))
}

// The image name of a mover that never can run needs no prepare timeout.
func TestAMoverWhoseImageNameIsInvalidFailsAtOnce(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.node.Faults.Add(node.Fault{Waiting: &node.Waiting{Reason: "InvalidImageName", Message: "couldn't parse image name"}})
	r := s.start()
	require.Contains(t, s.ends(s.transfer(), testenv.Failed).Status.Message, "InvalidImageName")
	r.finished("Failed", "cannot_run")
}
