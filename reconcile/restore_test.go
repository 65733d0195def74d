package reconcile

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// TestNoMoverWritesToAVolumeWhosePodResumed covers a restore whose mover was lost after the pod resumed.
func TestNoMoverWritesToAVolumeWhosePodResumed(t *testing.T) {
	for name, test := range map[string]struct {
		phase    velerov1.PodVolumeRestorePhase
		restarts string
		node     string // of the mover: this agent's, or one for which it stands in
	}{
		"as its mover is lost":                {phase: velerov1.PodVolumeRestorePhaseInProgress, node: testNode},
		"as its mover is lost, its agent too": {phase: velerov1.PodVolumeRestorePhaseInProgress, node: "n2"},
		"in the pause before the next mover":  {phase: velerov1.PodVolumeRestorePhaseAccepted, restarts: "1", node: testNode},
		"before the start of the next mover":  {phase: velerov1.PodVolumeRestorePhasePrepared, restarts: "1", node: testNode},
		"before it is accepted":               {},
	} {
		s := newRestore()
		s.Agent.Fleet = coordinatorFleet{absent: "n2"}
		s.object.Status = velerov1.PodVolumeRestoreStatus{Phase: test.phase, Node: test.node, AcceptedTimestamp: &metav1.Time{Time: s.clock.Now()}}
		s.object.Annotations = map[string]string{api.AnnotationRestarts: test.restarts}
		set := func(pod *corev1.Pod) {
			s.live["app/db"] = pod
			if test.node != "n2" {
				s.pods["app/db"] = pod
			}
		}
		if test.restarts != "" {
			set(waitingPod(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}))
			s.step(t)
			require.NotEqual(t, transfer.Failed, s.state().Phase, s.state().Message)
			s.object.Status.Phase = test.phase
			s.clock.Step(time.Minute)
		}
		resumed := waitingPod(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
		resumed.Status.Phase = corev1.PodSucceeded
		set(resumed)
		s.becomes(t, transfer.Failed, name)
		require.Contains(t, s.state().Message, "restore-wait of pod app/db has ended")
		require.Contains(t, s.state().Message, "no mover may overwrite it")
		require.Empty(t, s.kube.Actions(), "no mover is created")
	}
}

func TestARestoreWaitsForItsPodWhileThePodExists(t *testing.T) {
	for name, node := range map[string]string{"on this node, for its init container": testNode, "that is not scheduled": ""} {
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
		s.pods["app/db"] = waitingPod(corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
		s.becomes(t, transfer.Accepted, name)
	}
}

func TestTheWaitForAnAgentBeginsAfterThatForThePod(t *testing.T) {
	s := newRestore()
	s.pods["app/db"] = targetOn("n2")
	s.step(t)
	s.clock.Step(s.Limits.PrepareTimeout)
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
	s.clock.Step(s.Limits.PrepareTimeout)
	s.step(t)
	require.Contains(t, s.state().Message, "no ready node-agent on node n2")
}

func TestARestoreFailsAtOnceWhenItsPodIsDeleted(t *testing.T) {
	for name, node := range map[string]string{"on its node": testNode, "before it has a node": ""} {
		s := newRestore()
		s.live["app/db"], s.pods["app/db"] = targetOn(node), targetOn(node)
		s.step(t)
		s.clock.Step(s.Limits.FetchTarget)
		delete(s.pods, "app/db")
		if node != "" {
			s.object.Spec.Pod.UID = "" // its node is known
			s.becomes(t, transfer.New, "only the cache has lost it")
		}
		delete(s.live, "app/db")
		s.becomes(t, transfer.Failed, name)
		require.Contains(t, s.state().Message, "does not exist any more")
	}
	unseen := newRestore() // the name and the UID of its pod are known
	unseen.clock.Step(unseen.step(t) - time.Second)
	require.Equal(t, time.Second, unseen.step(t), "its watch may be late")
	unseen.clock.Step(time.Second)
	unseen.becomes(t, transfer.Failed)
}

// newLateDelivery returns a DataDownload whose rebind is past its deadline. Its agent has just started and has no local state.
func newLateDelivery(t *testing.T, objects ...runtime.Object) *single[*velerov2alpha1.DataDownload] {
	t.Helper()
	download := &velerov2alpha1.DataDownload{
		ObjectMeta: metav1.ObjectMeta{Finalizers: []string{api.FinalizerData}},
		Spec:       velerov2alpha1.DataDownloadSpec{TargetVolume: velerov2alpha1.TargetVolumeSpec{Namespace: "app", PVC: "restored"}},
		Status:     velerov2alpha1.DataDownloadStatus{Phase: velerov2alpha1.DataDownloadPhaseInProgress, Node: testNode},
	}
	s := newSingle(transfer.DataDownload(), download)
	moved := s.clock.Now().Add(-s.Limits.RebindTimeout - time.Minute)
	download.Annotations = map[string]string{api.AnnotationMoved: moved.UTC().Format(time.RFC3339)}
	for _, object := range objects {
		require.NoError(t, s.kube.Tracker().Add(object))
	}
	return s
}

func TestARebindPastItsDeadlineIsObservedOnceMore(t *testing.T) {
	target := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "restored", UID: "target-uid"}}
	bound := target.DeepCopy()
	bound.Spec.VolumeName, bound.Status.Phase = "pv", corev1.ClaimBound
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pv", UID: "pv-uid", Labels: map[string]string{api.LabelRebind: "b1-uid"}, Annotations: map[string]string{api.AnnotationReclaimPolicy: "Delete"},
		},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain, ClaimRef: &corev1.ObjectReference{Namespace: "app", Name: "restored"},
		},
	}
	held := volume.DeepCopy()
	held.Spec.ClaimRef.UID, held.Status.Phase = "target-uid", corev1.VolumeBound
	done := held.DeepCopy()
	done.Annotations, done.Spec.PersistentVolumeReclaimPolicy = nil, corev1.PersistentVolumeReclaimDelete
	for name, test := range map[string]struct {
		target  *corev1.PersistentVolumeClaim
		volume  *corev1.PersistentVolume
		bind    bool // Kubernetes binds them before the agent's grace ends, and no event reports it
		phase   velerov2alpha1.DataDownloadPhase
		policy  corev1.PersistentVolumeReclaimPolicy
		message string
	}{
		"the target is bound, all is done": {target: bound, volume: done, phase: "Completed", policy: "Delete"},
		"the target is bound unheard":      {target: target, volume: volume, bind: true, phase: "Completed", policy: "Delete"},
		"the target is not bound": {target: target, volume: volume, phase: "Failed", policy: "Retain",
			message: "restored volume was not rebound in time; target claim app/restored is not yet bound to PersistentVolume pv; restored volume kept as PersistentVolume pv"},
	} {
		s := newLateDelivery(t, test.target.DeepCopy(), test.volume.DeepCopy())
		s.pods[testKey] = newWorking().pods[testKey]
		s.pods[testKey].Status.Phase = corev1.PodSucceeded
		var logs []string
		s.MoverLog = func(_ context.Context, mover string, _ []byte) { logs = append(logs, mover) }
		require.Equal(t, s.Limits.RebindGrace, s.step(t))
		require.Equal(t, velerov2alpha1.DataDownloadPhaseInProgress, s.object.Status.Phase)
		require.Zero(t, s.restored.watched, "the coordinator has a cache of all claims")
		require.Equal(t, test.volume == done, s.local.read(testKey).rebound)
		require.Equal(t, []string{testKey}, logs, "saved before the pod is deleted")
		if test.bind {
			require.NoError(t, s.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims"), bound, "app"))
			require.NoError(t, s.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), held, ""))
		}
		s.clock.Step(s.Limits.RebindGrace)
		s.steps(t, 2)
		require.Equal(t, test.phase, s.object.Status.Phase, name)
		require.Equal(t, test.message, s.object.Status.Message)
		require.True(t, test.message == "" || slices.Contains(s.sent(), "Warning Failed "+test.message))
		volume, err := s.kube.CoreV1().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, test.policy, volume.Spec.PersistentVolumeReclaimPolicy)
		require.Equal(t, []string{testKey}, logs, "saved once, before the mover is deleted")
	}
}

// An admission policy may refuse every change. Then nothing is bound, and nothing else changes by waiting.
func TestARebindThatTheAPIServerRefusesFailsAtItsDeadline(t *testing.T) {
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "pv-uid"},
		Spec:       corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Namespace: "velero", Name: "b1", UID: "b1-claim"}},
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "b1", UID: "b1-claim", OwnerReferences: []metav1.OwnerReference{{UID: "b1-uid", Controller: new(true)}}},
		Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: "pv"},
	}
	for name, test := range map[string]struct {
		answer error
		phase  velerov2alpha1.DataDownloadPhase
	}{
		"invalid":      {apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolume"}, "pv", nil), "Failed"},
		"refused":      {apierrors.NewForbidden(corev1.Resource("persistentvolumes"), "pv", errors.New("by policy")), "Failed"},
		"bad":          {apierrors.NewBadRequest("denied"), "Failed"},
		"not answered": {errors.New("connection refused"), "InProgress"},
		"unauthorized": {apierrors.NewUnauthorized("expired token"), "InProgress"},
		"changed":      {apierrors.NewConflict(corev1.Resource("persistentvolumes"), "pv", nil), "InProgress"},
	} {
		target := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "restored", UID: "target-uid"}}
		s := newLateDelivery(t, target, volume.DeepCopy(), claim.DeepCopy())
		answered := false
		s.kube.PrependReactor("patch", "persistentvolumes", func(clienttesting.Action) (bool, runtime.Object, error) {
			return !answered, nil, test.answer
		})
		s.stepFails(t, "rebind velero/b1: ")
		s.clock.Step(s.Limits.RebindGrace)
		_, err := s.Reconcile(t.Context(), testKey)
		require.Equal(t, test.phase == "Failed", err == nil)
		require.Equal(t, test.phase, s.object.Status.Phase)
		if answered = name == "not answered"; answered {
			s.step(t)
			require.Equal(t, test.phase, s.object.Status.Phase, "an agent that was cut off has had no time")
		}
		if test.phase == "Failed" {
			require.Contains(t, s.object.Status.Message, "restored volume was not rebound in time; ")
			require.Contains(t, s.object.Status.Message, "restored PersistentVolume pv cannot be kept, and is deleted with its claim unless its reclaim policy is Retain: ")
		}
	}
}

func TestAnAgentWatchesTheClaimOfARestoreThatTheCoordinatorExposed(t *testing.T) {
	s := newLateDelivery(t)
	s.Agent = transfer.Agent{Node: "n2", Fleet: followerFleet{}}
	s.step(t)
	require.Zero(t, s.restored.watched, "it is of another node")
	s.Agent.Node = testNode
	s.step(t)
	require.Equal(t, types.NamespacedName{Namespace: "velero", Name: "b1"}, s.restored.watched)
	require.Empty(t, s.kube.Actions(), "the watch enqueues it")
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: moverPod().ObjectMeta, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}}
	s.claims = map[string]*corev1.PersistentVolumeClaim{testKey: claim}
	_, known := s.moverClaim(s.newRequest(testKey, s.object))
	require.True(t, known, "one that it created is in its cache")
	s.claims, s.restored.claim, s.restored.known = nil, claim, true
	s.step(t)
	require.True(t, s.kube.Actions()[0].Matches("get", "persistentvolumes"), "the volume of the claim")
	require.NotZero(t, s.restored.watched, "until the volume is rebound")
	s.clock.Step(s.Limits.RebindGrace)
	s.step(t)
	require.Equal(t, velerov2alpha1.DataDownloadPhaseFailed, s.object.Status.Phase)
	s.step(t)
	require.Zero(t, s.restored.watched)
	s.Agent.Fleet = coordinatorFleet{}
	s.step(t)
	require.Empty(t, s.object.Finalizers, "it is cleaned up")
	require.Equal(t, transfer.ReasonRebindFailed, transfer.FailureOf(s.object))
}

func TestARebindWaitsUntilTheNodeOfItsMoverHasDetachedTheVolume(t *testing.T) {
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", Labels: map[string]string{api.LabelRebind: "b1-uid"}, Annotations: map[string]string{api.AnnotationReclaimPolicy: "Delete"}},
		Spec: corev1.PersistentVolumeSpec{
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "driver", VolumeHandle: "handle"}},
		},
	}
	// csi- and the SHA-256 of the handle, the driver and the node
	attachment := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-fcdf7534d77374433985b772e0351e912ac58a9c262c213b8406d0883be5e8ac"}}
	s := newLateDelivery(t, &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "restored", UID: "target-uid"}}, volume, attachment)
	s.step(t)
	require.Equal(t, types.NamespacedName{Name: attachment.Name}, s.attached.watched)
	require.Equal(t, "PersistentVolume pv is still attached to node n1", s.local.read(testKey).blocker)
	s.kube.ClearActions()
	s.clock.Step(s.Limits.RebindGrace / 2)
	s.step(t)
	require.Empty(t, s.kube.Actions(), "the watch enqueues it")
	s.attached.enqueue()
	require.Equal(t, 1, s.enqueued)
	s.attached.detached = true // and no request asks again
	s.step(t)
	require.Contains(t, s.local.read(testKey).blocker, "is not yet bound")
	require.Zero(t, s.attached.watched, "that of the consumer's pod may have the same name")
	s.target.claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "target-uid"}, Status: corev1.PersistentVolumeClaimStatus{Phase: "Pending"}}
	logs := 0
	s.MoverLog = func(context.Context, string, []byte) { logs++ }
	s.pods[testKey] = moverPod() // the cache was late
	s.kube.ClearActions()
	s.step(t)
	require.Empty(t, s.kube.Actions(), "Kubernetes binds the target")
	s.clock.Step(s.Limits.RebindGrace / 2)
	s.step(t)
	require.Equal(t, 1, logs, "saved before the clean-up")
	require.Equal(t, velerov2alpha1.DataDownloadPhaseFailed, s.object.Status.Phase)
	s.attached.watched = types.NamespacedName{Name: attachment.Name}
	s.step(t)
	require.Zero(t, s.attached.watched)
}

func TestARebindSendsNothingWhileAnEventIsDue(t *testing.T) {
	s := newLateDelivery(t)
	s.pods[testKey], s.failing = moverPod(), errors.New("the mover is not read after its success")
	s.pods[testKey].DeletionTimestamp = &metav1.Time{}
	s.claims = map[string]*corev1.PersistentVolumeClaim{testKey + "-cache": {ObjectMeta: metav1.ObjectMeta{OwnerReferences: moverPod().OwnerReferences}}}
	s.step(t)
	require.Empty(t, s.kube.Actions(), "the cache claim stays until the clean-up")
	require.False(t, deleting(exposer.Existing{Pod: s.pods[testKey], Claims: make([]*corev1.PersistentVolumeClaim, 1)}), "its claim is not deleted yet")
	s.local.markRebind(testKey, exposer.Existing{Pod: s.pods[testKey]}, "")
	s.pods[testKey] = moverPod()
	s.step(t)
	require.Empty(t, s.kube.Actions(), "the cache does not show its deletion yet")
	delete(s.pods, testKey)
	s.target.claim = &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "reserved"}, Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}}
	s.local.markRebind(testKey, exposer.Existing{}, "reserved")
	s.step(t)
	require.Empty(t, s.kube.Actions(), "Kubernetes binds the target")
	s.target.claim.Status.Phase = corev1.ClaimBound
	require.False(t, s.binds(s.newRequest(testKey, s.object)))
	s.target.claim.Status.Phase, s.target.claim.DeletionTimestamp = corev1.ClaimPending, &metav1.Time{}
	require.False(t, s.binds(s.newRequest(testKey, s.object)))
	s.target.claim.DeletionTimestamp, s.target.claim.UID = nil, "recreated"
	s.step(t)
	require.NotEmpty(t, s.kube.Actions())
}

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
	s.failing = errors.New("its pod is not read before its start")
	for range 3 {
		require.Zero(t, s.step(t), "an event of the other one brings it on")
		require.Equal(t, transfer.Prepared, s.state().Phase)
	}
	require.Zero(t, s.NodeSlots.On(testNode).InUse())
	left := map[velerov1.PodVolumeRestorePhase]time.Duration{"Completed": s.Limits.RestartDelay} // the kubelet may report late that restore-wait has ended
	for version, phase := range []velerov1.PodVolumeRestorePhase{"Completed", "InProgress", "Completed"} {
		other.Status.Phase, other.ResourceVersion = phase, strconv.Itoa(2+version)
		require.Equal(t, left[phase], s.step(t))
		s.clock.Step(s.Limits.RestartDelay - time.Second)
	}
	require.Equal(t, time.Second, s.step(t))
	s.clock.Step(time.Second)
	s.failing = nil
	s.becomes(t, transfer.InProgress)
}

func TestASecondMoverWaitsHoweverLongTheFirstWasAlone(t *testing.T) {
	s, other := newTwoVolumes(velerov1.PodVolumeRestorePhaseInProgress, "0")
	s.object.Annotations, s.pods[testKey].Annotations = nil, nil
	s.becomes(t, transfer.InProgress)
	second, _ := newTwoVolumes(velerov1.PodVolumeRestorePhaseCompleted, "0")
	s.object.Status, s.object.Annotations, s.pods[testKey] = second.object.Status, second.object.Annotations, second.pods[testKey]
	other.Status.Phase, other.ResourceVersion = velerov1.PodVolumeRestorePhaseCompleted, "2"
	s.clock.Step(s.Limits.RestartDelay)
	require.Equal(t, s.Limits.RestartDelay, s.step(t))
	require.Equal(t, transfer.Prepared, s.state().Phase)
}

func TestASecondMoverDoesNotStartUnderAPodThatALateCacheShowsAsWaiting(t *testing.T) {
	s, _ := newTwoVolumes(velerov1.PodVolumeRestorePhaseCompleted, "0")
	s.live["app/db"] = waitingPod(corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}})
	s.clock.Step(s.step(t))
	s.becomes(t, transfer.Failed)
	require.Contains(t, s.state().Message, "no mover may overwrite it")
	require.Zero(t, s.NodeSlots.On(testNode).InUse())
	s, _ = newTwoVolumes(velerov1.PodVolumeRestorePhaseCompleted, "0")
	delete(s.pods, "app/db")
	s.clock.Step(s.step(t))
	s.becomes(t, transfer.InProgress)
	require.Equal(t, 2, s.gets, "a pod that no cache has is read once each time")
}

func TestAFirstMoverDoesNotStartWhileASecondOneOfItsPodWorks(t *testing.T) {
	s, other := newTwoVolumes(velerov1.PodVolumeRestorePhaseInProgress, "1")
	delete(s.object.Annotations, api.AnnotationRestarts)
	delete(s.pods[testKey].Annotations, api.AnnotationAttempt)
	s.failing = errors.New("a first mover needs no GET")
	s.becomes(t, transfer.Prepared)
	other.Annotations[api.AnnotationRestarts] = "0"
	other.ResourceVersion = "2"
	s.becomes(t, transfer.InProgress, "first movers run side by side")
}

func TestRestoresShareAPodByItsIdentity(t *testing.T) {
	s, other := newTwoVolumes("", "0")
	require.True(t, s.SharePod(s.object, other))
	require.False(t, s.SharePod(s.object, s.object))
	require.False(t, newDownload("").SharePod(&velerov2alpha1.DataDownload{}, newDownload("").object), "they have none")
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
	backup, download := newBackup(), newDownload("")
	require.False(t, backup.sharesPod(backup.newRequest(testKey, backup.object)))
	require.False(t, download.sharesPod(download.newRequest(testKey, download.object)))
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
	s.becomes(t, transfer.InProgress)
}
