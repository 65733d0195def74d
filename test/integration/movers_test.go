package integration

import (
	"cmp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1shared "github.com/vmware-tanzu/velero/pkg/apis/velero/shared"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestAMoverThatEndsBadly(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		end     node.Result
		reason  string
		message string
	}{
		"with exit code 1 fails with what it said": {
			end: node.Result{ExitCode: 1, Message: "Failed to run data path service for PVB: disk on fire"}, reason: "mover_failed",
			message: "Failed to run data path service for PVB: disk on fire (exit code 1)",
		},
		"for lack of memory says so": {
			end: node.Result{ExitCode: 137, Reason: "OOMKilled"}, reason: "mover_failed",
			message: "mover left no message (exit code 137, out of memory (OOMKilled), its memory limit is 512Mi)",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			s.configure(`{"podResources":{"memoryLimit":"512Mi"}}`)
			s.node.Faults.Add(node.Fault{Ends: &test.end})
			r := s.start()
			backup := s.transfer()
			ended := s.ends(backup, testenv.Failed)
			require.Contains(t, ended.Status.Message, test.message)
			require.Equal(t, 1, r.finished("Failed", test.reason))
			require.Zero(t, r.metric("lateen_mover_restarts_total"))
			require.Equal(t, 1, s.moversMade(backup))
			s.says("Failed", test.message)
		})
	}
}

func TestAMoverThatFailsAtWorkKeepsItsProgress(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond, acknowledged)
	s.mover.Result = &node.Result{ExitCode: 1, Message: "disk on fire"}
	s.configure(`{}`)
	r := s.start()
	name := s.transfer()
	ended := s.ends(name, testenv.Failed)
	require.Equal(t, "disk on fire (exit code 1)", ended.Status.Message)
	require.Equal(t, velerov1shared.DataMoveOperationProgress{TotalBytes: 1000, BytesDone: 500}, ended.Status.Progress)
	require.Equal(t, 1, r.finished("Failed", "mover_failed"))
	require.Zero(t, r.metric("lateen_slots_in_use"))
	s.says("MoverLog", "ends with exit code 1")
	require.ElementsMatch(t, []string{"Accepted", "Failed", "MoverLog"}, s.eventsOf(name))
}

func TestAMoverThatEndsWellBeforeItWasToldToStartHasFailed(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.configure(`{}`)
	s.node.Faults.Add(node.Fault{Ends: &node.Result{Message: `{"snapshotID":"x"}`}})
	k := newKiller(3, false) // nobody sees it run
	first := s.start(through(k.wrap))
	name := s.transfer()
	<-k.struck
	first.stop()
	s.moverIs(name, func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodSucceeded })
	r := s.start()
	ended := s.ends(name, testenv.Failed)
	require.Contains(t, ended.Status.Message, "mover ended before its start")
	require.Empty(t, ended.Status.SnapshotID)
	require.Equal(t, 1, r.finished("Failed", "mover_failed"))
	require.Equal(t, 1, s.moversMade(name))
}

func TestAMoverWhoseResultCannotBeReadHasFailed(t *testing.T) {
	t.Parallel()
	for name, message := range map[string]string{"garbage": "Segmentation fault", "nothing": "", "no snapshot": `{"totalBytes":5}`} {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			s.configure(`{}`)
			s.mover.Result = &node.Result{Message: message}
			r := s.start()
			ended := s.ends(s.transfer(), testenv.Failed)
			require.Contains(t, ended.Status.Message, "its result is unreadable")
			require.Empty(t, ended.Status.SnapshotID)
			require.Equal(t, 1, r.finished("Failed", "result_unreadable"))
			s.says("MoverLog", "stand-in mover of "+ended.Name)
			require.Contains(t, r.movers.String(), "stand-in mover of "+ended.Name)
		})
	}
}

func TestAMoverThatDoesNotComeToRun(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		fault   *node.Fault
		config  string
		reason  string
		message string
	}{
		"for want of its image fails in time, saying so": {
			fault:  &node.Fault{Waiting: &node.Waiting{Reason: "ImagePullBackOff", Message: "Back-off pulling image velero/velero"}},
			reason: "prepare_timeout", message: "ImagePullBackOff: Back-off pulling image",
		},
		"because of an image name that is none fails at once": {
			fault: &node.Fault{Waiting: &node.Waiting{Reason: "InvalidImageName", Message: "couldn't parse image name"}}, reason: "cannot_run", message: "InvalidImageName",
		},
		"for want of room fails in time with the scheduler's words": {
			config: noRoom, reason: "prepare_timeout", message: "Insufficient cpu",
		},
		"because a container is being created for ever fails in time": {
			fault: &node.Fault{NeverStarts: true}, reason: "prepare_timeout", message: "ContainerCreating",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, 50*time.Millisecond)
			s.configure(cmp.Or(test.config, `{}`))
			if test.fault != nil {
				s.node.Faults.Add(*test.fault)
			}
			r := s.start()
			name := s.transfer()
			if test.reason == "prepare_timeout" {
				s.pending(name, test.message)
				r = r.expire(testenv.PodVolumeBackup, name)
			}
			ended := s.ends(name, testenv.Failed)
			require.Contains(t, ended.Status.Message, test.message)
			require.Equal(t, 1, r.finished("Failed", test.reason))
		})
	}
}

func TestAnUploaderThatIsNotKopiaFailsAtOnce(t *testing.T) {
	s := newEnv(t, 50*time.Millisecond)
	s.configure(`{}`)
	r := s.start()
	backup := s.transfer(func(b *velerov1.PodVolumeBackup) { b.Spec.UploaderType = "restic" })
	ended := s.ends(backup, testenv.Failed)
	require.Contains(t, ended.Status.Message, "uploader restic is not supported by Lateen")
	require.Zero(t, s.moversMade(backup))
	require.Equal(t, 1, r.finished("Failed", "unsupported"))
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
	s.Helper()
	s.configure(`{}`)
	r := s.start()
	lose(s)
	name := s.transfer()
	ended := s.ends(name, testenv.Failed)
	require.Contains(s, ended.Status.Message, "does not exist any more")
	require.Zero(s, s.moversMade(name))
	require.Equal(s, 1, r.finished("Failed", "source_gone"))
}

func TestNoMoreMoversWorkThanThereAreSlots(t *testing.T) {
	s := newEnv(t, 200*time.Millisecond)
	s.configure(`{"loadConcurrency":{"globalConfig":2}}`)
	history, err := s.Record(t.Context())
	require.NoError(t, err)
	r := s.start()
	names := make([]string, 5)
	for i := range names {
		names[i] = s.transfer()
	}
	for _, name := range names {
		s.ends(name, testenv.Completed)
	}
	require.Equal(t, 2, history.MostAtOnce(s.node.Name(), "InProgress", "Canceling"))
	require.Equal(t, 2, r.metric("lateen_slots_limit"))
}
