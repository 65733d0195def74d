package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// TestNoMoverWritesToAVolumeWhosePodResumed covers a restore whose mover was lost after the pod resumed.
func TestNoMoverWritesToAVolumeWhosePodResumed(t *testing.T) {
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	succeeded := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
	for name, test := range map[string]struct {
		phase    velerov1.PodVolumeRestorePhase
		restarts string
		node     string // of the pod: this agent's, or one for which it stands in
	}{
		"as its mover is lost":                {phase: velerov1.PodVolumeRestorePhaseInProgress, node: testNode},
		"as its mover is lost, its agent too": {phase: velerov1.PodVolumeRestorePhaseInProgress, node: "n2"},
		"in the pause before the next mover":  {phase: velerov1.PodVolumeRestorePhaseAccepted, restarts: "1", node: testNode},
		"before the start of the next mover":  {phase: velerov1.PodVolumeRestorePhasePrepared, restarts: "1", node: testNode},
	} {
		t.Run(name, func(t *testing.T) {
			s := newRestore()
			s.Agent.Fleet = coordinatorFleet{absent: "n2"}
			s.object.Status = velerov1.PodVolumeRestoreStatus{Phase: test.phase, Node: test.node, AcceptedTimestamp: &metav1.Time{Time: s.clock.Now()}}
			s.object.Annotations = map[string]string{api.AnnotationRestarts: test.restarts}
			set := func(pod *corev1.Pod) {
				s.live["app/db"] = pod
				if test.node == testNode {
					s.pods["app/db"] = pod
				}
			}
			if test.restarts != "" {
				set(waitingPod(running))
				s.step(t)
				require.NotEqual(t, transfer.Failed, s.state().Phase, s.state().Message)
				s.object.Status.Phase = test.phase
				s.clock.Step(time.Minute)
			}
			set(waitingPod(succeeded))
			s.step(t)
			require.Equal(t, transfer.Failed, s.state().Phase)
			require.Contains(t, s.state().Message, "no mover may overwrite it")
			require.Empty(t, s.kube.Actions(), "no mover is created")
		})
	}
}

func TestARestoreWaitsForItsPodWhileThePodExists(t *testing.T) {
	running := waitingPod(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	for name, node := range map[string]string{"on this node, for its init container": testNode, "that is not scheduled": ""} {
		t.Run(name, func(t *testing.T) {
			s := newRestore()
			s.live["app/db"] = targetOn(node)
			if node != "" {
				s.pods["app/db"] = targetOn(node)
			}
			for range 5 {
				require.Positive(t, s.step(t))
				require.Equal(t, transfer.New, s.state().Phase, s.state().Message)
				s.clock.Step(s.Limits.PrepareTimeout)
			}
			s.live["app/db"], s.pods["app/db"] = running, running
			s.step(t)
			require.Equal(t, transfer.Accepted, s.state().Phase)
		})
	}
}

func TestARestoreFailsAtOnceWhenItsPodIsDeleted(t *testing.T) {
	pod := waitingPod(corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}})
	s := newRestore()
	s.live["app/db"], s.pods["app/db"] = pod, pod
	s.step(t)
	delete(s.pods, "app/db")
	s.step(t)
	require.Equal(t, transfer.New, s.state().Phase, "only the cache has lost it")
	loses(t, s)
}

func TestARestoreToATerminatedPodFailsAtTheTimeout(t *testing.T) {
	pod := waitingPod(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}})
	pod.Status.Phase = corev1.PodFailed
	s := newRestore()
	s.live["app/db"], s.pods["app/db"] = pod, pod
	s.clock.Step(s.step(t))
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
	require.Contains(t, s.state().Message, "restore-wait of pod app/db is not running")
}
