package integration

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/test/testenv"
)

// waitingPod is a restore and a pod that waits for its volume.
type waitingPod struct {
	restore *velerov1.Restore
	target  *corev1.Pod
}

// restores makes a pod that waits in its init container, if it has a node.
func (s *env) restores(node string) waitingPod {
	restore, err := s.Restore(s.soon(), "nightly")
	require.NoError(s, err)
	target, err := s.RestorePod(s.soon(), restore, "restored", node, testenv.EmptyDir("data"))
	require.NoError(s, err)
	return waitingPod{restore: restore, target: target}
}

// restoreOf creates the PodVolumeRestore for it.
func (s *env) restoreOf(r waitingPod, change ...func(*velerov1.PodVolumeRestore)) string {
	created, err := s.PodVolumeRestore(s.soon(), r.restore, r.target, "data", "snapshot", s.Apps, change...)
	require.NoError(s, err)
	return created.Name
}

func (s *env) restored(name string, phase testenv.Phase) *testenv.Transfer {
	ended, err := s.Transfers(testenv.PodVolumeRestore).Wait(s.soon(), name, testenv.Settled)
	require.NoError(s, err)
	require.Equal(s, phase, ended.Status.Phase, ended.Status.Message)
	if phase == testenv.Completed {
		s.movedAll(ended)
	}
	require.NotNil(s, ended.Status.CompletionTimestamp)
	require.NoError(s, s.WaitPodGone(s.soon(), s.Namespace, name))
	return ended
}

func TestARestoreWaitsForTheInitContainerOfItsPod(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.start()
	waiting := s.restores("no-such-node") // whose kubelet never starts it
	name := s.restoreOf(waiting)
	s.ends(s.transfer(), testenv.Completed) // the agent had the time to do something wrong
	seen, err := s.Transfers(testenv.PodVolumeRestore).Get(s.soon(), name)
	require.NoError(t, err)
	require.Empty(t, seen.Status.Phase)
	require.Empty(t, seen.Finalizers)
}

func TestARestoreWhosePodNeverStartsFailsInTime(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	r := s.start(shortWait)
	waiting := s.restores("no-such-node")
	name := s.restoreOf(waiting, func(pvr *velerov1.PodVolumeRestore) { pvr.Spec.Pod.Name, pvr.Spec.Pod.UID = "never-made", "" })
	ended := s.restored(name, testenv.Failed)
	require.Contains(t, ended.Status.Message, "pod "+s.Apps+"/never-made does not exist")
	r.countsEnd("kind", "podvolumerestore", "phase", "Failed", "reason", "not_eligible")
}

// TestARestoreFailsAtOnceWhenItsPodIsDeletedWhereNoAgentIs has a pod of which only the coordinator can know that it is gone.
func TestARestoreFailsAtOnceWhenItsPodIsDeletedWhereNoAgentIs(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	r := s.start(shortAbsence, func(options *agent.Options) { options.Limits.FollowTarget = time.Millisecond })
	waiting := s.restores("no-such-node")
	name := s.restoreOf(waiting)
	s.ends(s.transfer(), testenv.Completed)
	require.NoError(t, s.Kube.CoreV1().Pods(s.Apps).Delete(s.soon(), waiting.target.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}))
	ended := s.restored(name, testenv.Failed)
	require.Contains(t, ended.Status.Message, "does not exist any more")
	r.countsEnd("kind", "podvolumerestore", "phase", "Failed", "reason", "source_gone")
}

func TestAVolumeWhosePodHasStartedIsNotRestoredAgain(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.Movers.Lingers = time.Hour // after its mark lets the pod start
	r := s.start()
	waiting := s.restores(s.node.Name())
	name := s.restoreOf(waiting)
	_, err := s.WaitPod(s.soon(), s.Apps, waiting.target.Name, testenv.Ready)
	require.NoError(t, err)
	require.NoError(t, s.node.Preempt(s.Namespace, name, "by a pod of class high"))
	ended := s.restored(name, testenv.Failed)
	require.Contains(t, ended.Status.Message, "restore-wait of pod "+s.Apps+"/"+waiting.target.Name+" has ended")
	require.Contains(t, ended.Status.Message, "may have been restored completely: check its data")
	require.Equal(t, 1, s.moversMade(name))
	r.countsEnd("kind", "podvolumerestore", "phase", "Failed", "reason", "restore_unconfirmed")
}

// completed waits until all of them are, in whichever order.
func (s *env) completed(history *testenv.Recorder, names ...string) []testenv.Transition {
	transitions, err := history.Until(s.soon(), func(all []testenv.Transition) bool {
		finished := 0
		for _, seen := range all {
			if seen.To.Ended() && slices.Contains(names, seen.Name) {
				finished++
			}
		}
		return finished == len(names)
	})
	require.NoError(s, err)
	for _, name := range names {
		require.Contains(s, history.Phases(name), testenv.Completed, name)
	}
	return transitions
}

// TestASecondMoverOfAPodWorksAlone is a pod with two volumes: the mark of the first mover may still be in one when the
// other gets its own, with which the pod goes on.
func TestASecondMoverOfAPodWorksAlone(t *testing.T) {
	s := newEnv(t, 0)
	finish := s.work()
	s.configure(`{"loadConcurrency":{"globalConfig":2}}`)
	history := s.record()
	s.start()
	restore, err := s.Restore(s.soon(), "nightly")
	require.NoError(t, err)
	target, err := s.RestorePod(s.soon(), restore, "restored", s.node.Name(), testenv.EmptyDir("data"), testenv.EmptyDir("logs"))
	require.NoError(t, err)
	var names []string
	for _, volume := range []string{"data", "logs"} {
		created, err := s.PodVolumeRestore(s.soon(), restore, target, volume, "snapshot-"+volume, s.Apps)
		require.NoError(t, err)
		names = append(names, created.Name)
	}
	for _, name := range names {
		_, err := s.Transfers(testenv.PodVolumeRestore).Wait(s.soon(), name, testenv.In(testenv.InProgress))
		require.NoError(t, err)
	}
	require.NoError(t, s.node.Evict(s.Namespace, names[0], "the node is low on memory"))
	_, err = s.Transfers(testenv.PodVolumeRestore).Wait(s.soon(), names[0], func(seen *testenv.Transfer) bool {
		return seen.Annotations["lateen.dev/mover-restarts"] == "1" && seen.Status.Phase == testenv.Prepared
	})
	require.NoError(t, err)
	finish()
	var restarted, other int
	for at, seen := range s.completed(history, names...) {
		switch {
		case seen.Name == names[0] && seen.To == testenv.InProgress:
			restarted = at
		case seen.Name == names[1] && seen.To == testenv.Completed:
			other = at
		}
	}
	require.Greater(t, restarted, other, "its second mover started while the other volume was restored")
	require.Equal(t, 2, s.moversMade(names[0]))
	_, err = s.WaitPod(s.soon(), s.Apps, target.Name, testenv.Ready)
	require.NoError(t, err)
}
