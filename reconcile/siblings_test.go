package reconcile

import (
	"errors"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// newTwoVolumes returns a restore whose mover is ready for its second start, and one to another volume of its pod.
func newTwoVolumes(phase velerov1.PodVolumeRestorePhase, restarts string) (*single[*velerov1.PodVolumeRestore], *velerov1.PodVolumeRestore) {
	s := newRestore()
	pod := waitingPod(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	s.live["app/db"], s.pods["app/db"] = pod, pod
	s.object.Status = velerov1.PodVolumeRestoreStatus{Phase: velerov1.PodVolumeRestorePhasePrepared, Node: testNode, AcceptedTimestamp: &metav1.Time{Time: s.clock.Now()}}
	s.object.Annotations = map[string]string{api.AnnotationRestarts: "1"}
	s.pods[testKey] = moverPod()
	s.pods[testKey].Annotations = map[string]string{api.AnnotationAttempt: "1"}
	other := s.object.DeepCopy()
	other.Name, other.UID, other.Spec.Volume = "b2", "b2-uid", "logs"
	other.Annotations[api.AnnotationRestarts] = restarts
	other.Status.Phase = phase
	s.siblings = append(s.siblings, other)
	return s, other
}

func TestASecondMoverDoesNotStartWhileAnotherVolumeOfItsPodIsRestored(t *testing.T) {
	s, other := newTwoVolumes(velerov1.PodVolumeRestorePhaseInProgress, "0")
	for range 3 {
		require.Zero(t, s.step(t), "an event of the other one brings it on")
		require.Equal(t, transfer.Prepared, s.state().Phase)
	}
	require.Zero(t, s.NodeSlots.Own().InUse())
	for version, phase := range []velerov1.PodVolumeRestorePhase{"Completed", "InProgress", "Completed"} {
		other.Status.Phase, other.ResourceVersion = phase, strconv.Itoa(2+version)
		if phase == velerov1.PodVolumeRestorePhaseCompleted {
			require.Equal(t, s.Limits.RestartDelay, s.step(t), "the kubelet may still have to report that restore-wait has ended")
		} else {
			require.Zero(t, s.step(t))
		}
		s.clock.Step(s.Limits.RestartDelay / 2)
	}
	require.Equal(t, transfer.Prepared, s.state().Phase)
	s.clock.Step(s.Limits.RestartDelay / 2)
	s.step(t)
	require.Equal(t, transfer.InProgress, s.state().Phase)
}

func TestASecondMoverDoesNotStartUnderAPodThatALateCacheShowsAsWaiting(t *testing.T) {
	s, _ := newTwoVolumes(velerov1.PodVolumeRestorePhaseCompleted, "0")
	s.live["app/db"] = waitingPod(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
	s.clock.Step(s.step(t))
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
	require.Contains(t, s.state().Message, "no mover may overwrite it")
	require.Zero(t, s.NodeSlots.Own().InUse())
}

func TestAFirstMoverDoesNotStartWhileASecondOneOfItsPodWorks(t *testing.T) {
	s, other := newTwoVolumes(velerov1.PodVolumeRestorePhaseInProgress, "1")
	delete(s.object.Annotations, api.AnnotationRestarts)
	delete(s.pods[testKey].Annotations, api.AnnotationAttempt)
	s.failing = errors.New("a first mover needs no GET")
	s.step(t)
	require.Equal(t, transfer.Prepared, s.state().Phase)
	other.Annotations[api.AnnotationRestarts] = "0"
	other.ResourceVersion = "2"
	s.step(t)
	require.Equal(t, transfer.InProgress, s.state().Phase, "first movers run side by side")
}

func TestRestoresShareAPodByItsIdentity(t *testing.T) {
	s, other := newTwoVolumes("", "0")
	require.True(t, s.SharePod(s.object, other))
	require.False(t, s.SharePod(s.object, s.object))
	for _, change := range []func(*corev1.ObjectReference){
		func(pod *corev1.ObjectReference) { pod.UID = "another" }, func(pod *corev1.ObjectReference) { pod.Name = "another" },
		func(pod *corev1.ObjectReference) { pod.Namespace = "another" },
	} {
		other.Spec.Pod = s.object.Spec.Pod
		change(&other.Spec.Pod)
		require.False(t, s.SharePod(s.object, other))
	}
	require.True(t, s.AwaitsSibling(s.object))
	require.False(t, s.AwaitsSibling(other))
}

func TestARestoreWaitsForTheStartOfAnotherOfItsPodOnly(t *testing.T) {
	s, other := newTwoVolumes(velerov1.PodVolumeRestorePhaseCompleted, "0")
	s.object.Annotations = nil
	delete(s.pods[testKey].Annotations, api.AnnotationAttempt)
	pod := other.Spec.Pod
	s.starting.Store(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, true)
	require.Equal(t, ConflictRequeue, s.step(t), "another restore of the pod is being started")
	require.Equal(t, transfer.Prepared, s.state().Phase)
	s.starting.Clear()
	s.starting.Store(types.NamespacedName{Namespace: pod.Namespace, Name: "another"}, true)
	s.step(t)
	require.Equal(t, transfer.InProgress, s.state().Phase)
}
