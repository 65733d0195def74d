package reconcile

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

func TestADownloadWaitsForItsStorageClassUntilTheTimeout(t *testing.T) {
	for exists, phase := range map[bool]transfer.Phase{true: transfer.Accepted, false: transfer.Failed} {
		s := newDownload("late")
		require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
		s.clock.Step(s.Limits.PrepareTimeout)
		if exists {
			s.classes["late"] = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}}
		}
		s.becomes(t, phase)
		require.Equal(t, !exists, s.state().Message == "not ready to be prepared within 30m0s: storage class late of claim app/data does not exist")
	}
}

func TestADownloadWithoutAConsumerDoesNotWaitForOne(t *testing.T) {
	for name, change := range map[string]func(*single[*velerov2alpha1.DataDownload]){
		"in place, its consumers had to be deleted": func(s *single[*velerov2alpha1.DataDownload]) { s.object.Spec.TargetVolume.PV = "existing" },
		"as configured": func(s *single[*velerov2alpha1.DataDownload]) { s.NoConsumer = true },
		"into a scratch claim": func(s *single[*velerov2alpha1.DataDownload]) {
			s.object.Labels = map[string]string{api.LabelVerify: "nightly"}
			s.object.Spec.TargetVolume.Namespace, s.object.Spec.TargetVolume.PVC = s.object.Namespace, s.object.Name+"-scratch"
		},
	} {
		s := newDownload("late")
		change(s)
		late := storagev1.VolumeBindingWaitForFirstConsumer
		s.classes["late"] = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, VolumeBindingMode: &late}
		s.becomes(t, transfer.Accepted, name)
	}
}

// TestALateWatchDoesNotFailADownload has a claim whose watch shows nothing within the prepare timeout.
func TestALateWatchDoesNotFailADownload(t *testing.T) {
	for exists, phase := range map[bool]transfer.Phase{true: transfer.Accepted, false: transfer.Failed} {
		s := newDownload("")
		s.target.known = false
		require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
		require.Empty(t, s.kube.Actions(), "its watch is enough")
		if exists {
			require.NoError(t, s.kube.Tracker().Add(s.target.claim))
		}
		s.clock.Step(s.Limits.PrepareTimeout)
		s.becomes(t, phase)
		require.Equal(t, !exists, s.state().Message == "not ready to be prepared within 30m0s: claim app/data does not exist")
	}
}

// cancels cancels a transfer in a phase, while no pod can be read.
func cancels[T transfer.Object](t *testing.T, s *single[T], phase transfer.Phase) {
	t.Helper()
	s.failing = errors.New("no answer")
	s.LearnSlots = func(context.Context, string) error { return s.failing }
	state := s.state()
	state.Phase, state.Cancel = phase, true
	s.Kind.Set(s.object, state)
	s.becomes(t, transfer.Canceled)
	require.Contains(t, s.sent(), "Normal Canceled Canceled. "+s.state().Message)
}

// TestACancelIsHonoredDespiteReadErrors covers the phases in which no mover was started.
func TestACancelIsHonoredDespiteReadErrors(t *testing.T) {
	for _, phase := range []transfer.Phase{"", transfer.New, transfer.Accepted, transfer.Prepared} {
		cancels(t, newDownload("never-made"), phase)
		cancels(t, newBackup(), phase)
		cancels(t, newRestore(), phase)
	}
}

func TestADeletionIsHonoredThoughThePodIsUnreadableAndItsNodeHasNoAgent(t *testing.T) {
	s := newRestore()
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	s.pods["app/db"] = targetOn("n2")
	s.step(t)
	delete(s.pods, "app/db")
	s.failing = errors.New("no answer")
	s.stepFails(t, "get pod app/db: no answer")
	s.Agent.Fleet = followerFleet{}
	s.becomes(t, transfer.New, "only the coordinator reads it")
	s.Agent.Fleet, s.object.DeletionTimestamp = coordinatorFleet{absent: "n2"}, &metav1.Time{Time: s.clock.Now()}
	s.becomes(t, transfer.Canceled)
}

func TestABackupOfAPodThatCannotExistOrHasEndedFails(t *testing.T) {
	for i, reference := range []corev1.ObjectReference{{Namespace: "app"}, {Name: "db"}, {Namespace: "app", Name: "d/b"}, {Namespace: "..", Name: "db"}} {
		s := newBackup()
		if i > 0 {
			s.pods[testKey] = moverPod()
			s.pods[testKey].Status = corev1.PodStatus{Phase: corev1.PodPending}
		}
		s.object.Spec.Pod = reference
		s.failing = errors.New("resource name may not be empty") // client-go's error for such names
		s.becomes(t, transfer.Accepted)
		s.becomes(t, transfer.Failed, reference)
		require.Contains(t, s.state().Message, "does not exist")
		require.Equal(t, transfer.ReasonSourceGone, transfer.FailureOf(s.object))
	}
	s := newBackup()
	s.pods["app/db"] = sourcePod()
	s.step(t)
	s.pods["app/db"].Status.Phase = corev1.PodSucceeded
	s.step(t)
	require.Equal(t, transfer.ReasonSourceGone, transfer.FailureOf(s.object))
}

func TestATransferWhoseClaimHasAnExistingVolumeFails(t *testing.T) {
	s := newDownload("")
	s.object.Labels, s.object.Spec.TargetVolume.Namespace, s.object.Spec.TargetVolume.PVC = map[string]string{api.LabelVerify: "nightly"}, "velero", "b1"+api.ScratchSuffix
	s.object.Status.Phase, s.object.Status.AcceptedTimestamp = velerov2alpha1.DataDownloadPhaseAccepted, &metav1.Time{Time: s.clock.Now()}
	s.object.Annotations, s.object.Finalizers = map[string]string{api.AnnotationExposer: testNode}, []string{api.FinalizerData}
	s.Agent.Fleet = coordinatorFleet{}
	s.pods[testKey], s.claims = moverPod(), map[string]*corev1.PersistentVolumeClaim{testKey: {ObjectMeta: moverPod().ObjectMeta}}
	s.claims[testKey].Spec.VolumeName, s.claims[testKey].CreationTimestamp = "pv1", metav1.Unix(2, 0)
	require.NoError(t, s.kube.Tracker().Add(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{
		Name: "pv1", CreationTimestamp: metav1.Unix(1, 0), Annotations: map[string]string{objects.AnnotationBoundByController: "yes"},
	}}))
	s.step(t)
	require.Equal(t, velerov2alpha1.DataDownloadPhaseFailed, s.object.Status.Phase)
	require.Contains(t, s.object.Status.Message, "claim b1 was bound to PersistentVolume pv1, which existed before")
}

func TestThePrepareTimeoutAppliesDespiteReadErrors(t *testing.T) {
	s := newBackup()
	s.becomes(t, transfer.Accepted)
	s.failing = apierrors.NewForbidden(corev1.Resource("pods"), "db", errors.New("no rights"))
	s.stepFails(t, "no rights")
	s.clock.Step(s.Limits.PrepareTimeout)
	s.becomes(t, transfer.Failed)
	require.Contains(t, s.state().Message, "no rights")
}

func TestADataMoverCountsForTheStorageClassOfItsTargetOrSource(t *testing.T) {
	s := newDownload("slow")
	s.classes["slow"] = &storagev1.StorageClass{}
	s.Preparing.SetLimits(capacity.Limits{StorageClasses: map[string]int{"slow": 1}})
	another := capacity.Transfer{UID: "another", StorageClass: "slow"}
	s.Preparing.Track(another, capacity.Starting, "", nil)
	s.becomes(t, transfer.New)
	s.Preparing.Release("another")
	s.target.known = true
	s.becomes(t, transfer.Accepted)
	require.False(t, s.Preparing.TryAcquire(another, func() {}))
	s.target.claim = nil
	require.Equal(t, "slow", s.place(s.object, s.state(), "").StorageClass, "a coordinator that did not accept it does not watch the claim")
	upload := &velerov2alpha1.DataUpload{Spec: velerov2alpha1.DataUploadSpec{CSISnapshot: &velerov2alpha1.CSISnapshotSpec{StorageClass: "slow"}}}
	require.Equal(t, "slow", newSingle(transfer.DataUpload(), upload).storageClass(upload))
}

// newQueued returns a download that is queued for the only place. Its claim is not watched there.
func newQueued(t *testing.T) *single[*velerov2alpha1.DataDownload] {
	t.Helper()
	s := newDownload("")
	s.Preparing = capacity.NewQueue(1, 1)
	s.Preparing.Track(capacity.Transfer{UID: "first"}, capacity.Starting, "", nil)
	require.Zero(t, s.step(t))
	require.Equal(t, transfer.New, s.state().Phase)
	require.False(t, s.target.known)
	s.clock.Step(2 * s.Limits.PrepareTimeout)
	return s
}

func TestAQueuedDownloadKeepsItsTurnUntilItsClaimIsKnown(t *testing.T) {
	s := newQueued(t)
	younger := capacity.Transfer{UID: "younger", Restore: true, Created: s.clock.Now()}
	require.False(t, s.Preparing.TryAcquire(younger, func() { t.Error("it is not its turn") }))
	s.Preparing.Release("first")
	require.Equal(t, 1, s.enqueued)
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t), "the time in the queue does not count")
	require.False(t, s.Preparing.TryAcquire(younger, func() { t.Error("it is not its turn") }))
	s.target.known = true
	s.becomes(t, transfer.Accepted)
	require.Equal(t, 1, s.enqueued)
}

func TestAQueuedDownloadThatIsNotEligibleAnyMoreGivesItsTurnToTheNext(t *testing.T) {
	s := newQueued(t)
	enqueued := 0
	require.False(t, s.Preparing.TryAcquire(capacity.Transfer{UID: "younger", Created: s.clock.Now()}, func() { enqueued++ }))
	s.Preparing.Release("first")
	s.step(t)
	require.Zero(t, enqueued)
	s.target.known, s.target.claim = true, nil
	s.step(t)
	require.Equal(t, 1, enqueued)
}

func TestAReturningAgentRestartsTheTimeouts(t *testing.T) {
	s := newBackup()
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	s.object.Spec.Node = "n2"
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
	s.Agent.Fleet = coordinatorFleet{veleros: "n2"}
	s.clock.Step(s.Limits.PrepareTimeout)
	require.Zero(t, s.step(t))
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
}

func TestARestoreNamesAPodThatDoesNotExistAtTheTimeout(t *testing.T) {
	for name, failing := range map[string]error{"db": nil, "": errors.New("resource name may not be empty")} { // no pod can have that name
		s := newRestore()
		s.object.Spec.Pod, s.failing = corev1.ObjectReference{Namespace: "app", Name: name}, failing
		s.Limits.PrepareTimeout = s.Limits.FetchTarget / 2
		require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
		s.clock.Step(s.Limits.PrepareTimeout)
		s.becomes(t, transfer.Failed)
		require.Contains(t, s.state().Message, "pod app/"+name+" does not exist")
	}
}

// TestTheCoordinatorFetchesAPodThatItDoesNotWatch has a restore to a pod without Velero's label.
func TestTheCoordinatorFetchesAPodThatItDoesNotWatch(t *testing.T) {
	s := newRestore()
	s.object.Spec.Pod.UID = "" // it may be recreated
	for _, node := range []string{"", "n3", "n2"} {
		s.live["app/db"] = targetOn(node)
		require.Equal(t, s.Limits.FetchTarget, s.step(t))
		require.Equal(t, transfer.New, s.state().Phase, s.state().Message)
		s.clock.Step(s.Limits.FetchTarget)
	}
	s.live["app/db"] = initializing()
	require.Zero(t, s.step(t))
	require.Equal(t, transfer.Accepted, s.state().Phase)
	require.Equal(t, []string{"n2", "n2"}, []string{s.state().Node, s.state().Exposer})
}

func TestTheCoordinatorAcceptsARestoreForTheAgentOfItsPodsNode(t *testing.T) {
	s := newRestore()
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	s.pods["app/db"] = initializing()
	var asked []string
	s.LearnSlots = func(_ context.Context, node string) error {
		asked = append(asked, node)
		return nil
	}
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t), "it has no agent")
	s.Agent.Fleet = coordinatorFleet{veleros: "n2"}
	delete(s.pods, "app/db")
	require.Zero(t, s.step(t), "Velero's agent accepts it, or reports that its pod is deleted")
	require.Equal(t, transfer.New, s.state().Phase)
	s.Agent.Fleet, s.pods["app/db"] = coordinatorFleet{}, initializing()
	s.becomes(t, transfer.Accepted)
	require.Equal(t, []string{"n2", "n2"}, []string{s.state().Node, s.state().Exposer})
	require.Equal(t, []string{"n2"}, asked, "how many movers it may run")
}

func TestARestoreThatOnlyVeleroSupportsIsLeftToItsAgent(t *testing.T) {
	for fleet, want := range map[transfer.Fleet]transfer.Phase{coordinatorFleet{veleros: "n2"}: transfer.New, coordinatorFleet{}: transfer.Failed} {
		s := newRestore()
		s.object.Spec.UploaderType, s.Agent.Fleet = "restic", fleet
		s.LearnSlots = func(context.Context, string) error { return errors.New("it needs no slot") }
		s.becomes(t, transfer.New, "its pod has no node")
		s.pods["app/db"] = initializing()
		s.becomes(t, want)
	}
	backup, download := newBackup(), newDownload("")
	backup.object.Spec.Node, backup.object.Spec.UploaderType = "", "restic"
	backup.becomes(t, transfer.Failed, "it never gets a node")
	download.object.ManagedFields = []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unknown":{}}}`)}}
	download.target.known = false
	download.becomes(t, transfer.Failed, "whether its claim exists or not")
}

func TestARestoreFailsWhenItsPodWasRecreated(t *testing.T) {
	s := newRestore()
	s.pods["app/db"] = targetOn("n2")
	s.step(t)
	s.live["app/db"], s.pods["app/db"] = initializing(), initializing()
	s.live["app/db"].UID, s.pods["app/db"].UID = "another", "another"
	s.becomes(t, transfer.Failed)
}

// newForeign returns a DataDownload for another data mover, in that phase.
func newForeign(phase velerov2alpha1.DataDownloadPhase) *single[*velerov2alpha1.DataDownload] {
	s := newDownload("")
	s.object.Spec.DataMover, s.object.Status.Phase = "acme", phase
	return s
}

func TestAForeignTransferIsReportedOnceAndNotChanged(t *testing.T) {
	s := newForeign("")
	before := s.object.DeepCopy()
	s.observed(t)
	for range 3 {
		require.Zero(t, s.step(t))
	}
	require.Equal(t, before, s.object)
	require.Equal(t, []string{`Normal ForeignDataMover Ignored by Lateen: it is for data mover "acme", not Velero's own. That data mover must be installed and accept it`}, s.sent())
}

func TestAForeignTransferWithItsDataMoverIsNeitherReportedNorRead(t *testing.T) {
	for _, phase := range []velerov2alpha1.DataDownloadPhase{"Accepted", "InProgress", "Completed", "Failed"} {
		s := newForeign(phase)
		s.failing = errors.New("its mover must not be read")
		require.Zero(t, s.step(t))
		require.Empty(t, s.events.Events, phase)
		require.Empty(t, s.kube.Actions())
	}
}

func TestOnlyTheCoordinatorReportsAndCountsForeignTransfers(t *testing.T) {
	s := newForeign("")
	taken := s.object.DeepCopy()
	taken.Status.Phase, taken.Status.Node = velerov2alpha1.DataDownloadPhaseInProgress, "n2"
	finished := s.object.DeepCopy()
	finished.Status.Phase = velerov2alpha1.DataDownloadPhaseCompleted
	s.clock.Step(90 * time.Second)
	for fleet, want := range map[transfer.Fleet]map[string]float64{coordinatorFleet{}: {"New": 90, "InProgress": 90, "Completed": 90}, followerFleet{}: {}} {
		ages := map[string]float64{}
		s.Agent.Fleet = fleet
		for _, one := range s.Count([]*velerov2alpha1.DataDownload{s.object, taken, finished}) {
			require.Zero(t, one.Transfers, "they are not this agent's")
			if one.Foreign > 0 || one.ForeignAge > 0 {
				require.Equal(t, 1, one.Foreign)
				ages[one.Phase] = one.ForeignAge
			}
		}
		require.Equal(t, want, ages)
	}
	s.Agent.Fleet = followerFleet{}
	s.step(t)
	require.Empty(t, s.events.Events)
}

func TestASnapshotIsDeletedBeforeTheFinalizerIsRemoved(t *testing.T) {
	s := newUpload(velerov2alpha1.DataUploadPhaseFailed)
	require.Zero(t, s.step(t))
	require.Zero(t, s.enqueued+len(s.kube.Actions()), "nothing is done for a settled transfer")
	s.object.Finalizers = []string{api.FinalizerData}
	s.step(t)
	require.Equal(t, 1, s.enqueued, "nothing is left of it")
	s.step(t)
	require.Empty(t, s.object.Finalizers)
}

func TestAnUncachedMoverIsDeletedBeforeTheFinalizerIsRemoved(t *testing.T) {
	s := newFixture(t, fault{})
	s.steps(t, 2) // accepts it, and creates the mover
	require.NotNil(t, s.Mover(testKey))
	s.object.Status.Phase = velerov1.PodVolumeBackupPhaseCanceled
	s.Pods = s.single // which caches nothing
	require.Positive(t, s.step(t), "no event of a pod that no cache has will come")
	require.Nil(t, s.Mover(testKey))
	require.NotEmpty(t, s.object.Finalizers)
	s.step(t)
	require.Empty(t, s.object.Finalizers)
}

func TestOnlyClaimsOfTheResourceAreItsLeftovers(t *testing.T) {
	for owner, left := range map[types.UID]bool{"b1-uid": true, "another": false} {
		s := newDownload("")
		s.object.Status.Phase, s.object.Finalizers = velerov2alpha1.DataDownloadPhaseFailed, []string{api.FinalizerData}
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: moverPod().ObjectMeta}
		claim.OwnerReferences[0].UID = owner
		s.claims = map[string]*corev1.PersistentVolumeClaim{testKey: claim}
		request := s.observed(t)
		require.Equal(t, left, request.observed.HasLeftovers)
		require.Equal(t, left, len(s.found(request).Claims) == 1)
		require.Equal(t, left, len(s.kube.Actions()) == 0, "the cache is enough")
		s.claims = nil
		require.NoError(t, s.kube.Tracker().Add(claim))
		require.Equal(t, left, s.step(t) > 0, "no event of a claim that no cache has will come")
		require.Equal(t, left, len(s.object.Finalizers) > 0)
	}
}

func TestAMoverThatNoCacheHasIsNotLost(t *testing.T) {
	s := newRunning()
	s.pods["app/db"], s.pods[testKey], s.failing = sourcePod(), moverPod(), errors.New("no answer")
	s.pods[testKey].OwnerReferences[0].UID, s.pods[testKey].Status.Phase = "earlier", corev1.PodFailed
	s.clock.Step(s.Limits.PrepareTimeout)
	s.stepFails(t, "no answer") // a timeout of another phase changes nothing
	s.failing, s.live[testKey] = nil, moverPod()
	require.Equal(t, unseenRequeue, s.step(t), "it may end before a cache has it, so without an event")
	require.Equal(t, transfer.InProgress, s.state().Phase)
	s.live[testKey].Status.Phase = corev1.PodSucceeded
	s.becomes(t, transfer.Failed)
	require.Regexp(t, "its result is unreadable: .+", s.state().Message)
}

func TestAMoverOfThisNodeIsStartedAndFollowedWithoutARequest(t *testing.T) {
	s := newWorking()
	s.object.Status.Phase, s.object.Annotations = velerov1.PodVolumeBackupPhasePrepared, map[string]string{api.AnnotationRestarts: "1"}
	s.pods[testKey].Annotations = map[string]string{api.AnnotationAttempt: "1"}
	s.failing, s.LearnSlots = errors.New("no answer"), func(context.Context, string) error { return s.failing }
	ready := s.object.DeepCopy()
	s.Agent = transfer.Agent{Node: "n2", Fleet: coordinatorFleet{lost: testNode}}
	s.becomes(t, transfer.Failed, "nothing is started on a lost node")
	s.object, s.Agent = ready, transfer.Agent{Node: testNode, Fleet: coordinatorFleet{}}
	s.stale = true
	require.Equal(t, ConflictRequeue, s.step(t), "a mover that no cache has may run on this node")
	s.clock.Step(staleGrace)
	s.NodeSlots.ForceAcquire(testNode, "another")
	require.Zero(t, s.step(t), "the end of the other one enqueues it")
	s.NodeSlots.Release("another")
	s.becomes(t, transfer.InProgress)
	download := newDownload("")
	download.object.Status, download.object.Annotations = velerov2alpha1.DataDownloadStatus{Phase: "Prepared", Node: testNode}, s.object.Annotations
	download.pods[testKey] = s.pods[testKey]
	download.becomes(t, transfer.InProgress)
	delete(s.pods, "app/db")
	s.object.Status.StartTimestamp = nil // another client wrote it
	require.Equal(t, s.Limits.StallTimeout, s.step(t))
	s.recorded = true
	require.Equal(t, unseenRequeue, s.step(t))
	s.pods[testKey].Status, s.failing = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}, nil
	s.becomes(t, transfer.Failed)
	require.Equal(t, transfer.ReasonSourceGone, transfer.FailureOf(s.object), "its pod is read once the mover is lost")
}

func TestALateMoverIsDiagnosedByItsOwnerAtTheTimeout(t *testing.T) {
	s := newDownload("")
	s.object.Status = velerov2alpha1.DataDownloadStatus{Phase: "Accepted", AcceptedByNode: "n2", AcceptedTimestamp: &metav1.Time{Time: s.clock.Now()}}
	s.pods[testKey], s.Agent.Fleet = moverPod(), coordinatorFleet{veleros: "n2"}
	s.pods[testKey].Status.Phase = corev1.PodPending
	s.clock.Step(s.Limits.PrepareTimeout)
	s.becomes(t, transfer.Accepted)
	require.Empty(t, s.kube.Actions(), "Velero's agent does it")
	s.Agent.Fleet, s.object.Status.AcceptedTimestamp.Time = coordinatorFleet{}, s.clock.Now()
	s.step(t) // takes it over
	s.becomes(t, transfer.Accepted)
	require.Empty(t, s.kube.Actions())
	s.local.setBlocker(testKey, "", errors.New("exceeded quota"))
	s.clock.Step(s.Limits.PrepareTimeout)
	s.becomes(t, transfer.Failed)
	require.Contains(t, s.state().Message, "exceeded quota")
}

func TestADeletedResourceHoldsNothing(t *testing.T) {
	for _, recreated := range []bool{false, true} {
		s := newWorking()
		require.Zero(t, s.inactivity(), "it is not observed yet")
		s.step(t)
		require.Equal(t, 1, s.NodeSlots.On(testNode).InUse())
		s.object = s.object.DeepCopy()
		s.object.UID, s.object.Status = "its successor", velerov1.PodVolumeBackupStatus{}
		s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return s.object, recreated }
		require.Zero(t, s.step(t), "recreated: %t", recreated)
		require.Zero(t, s.NodeSlots.On(testNode).InUse(), "recreated: %t", recreated)
		require.Zero(t, s.local.read(testKey).activeAt, "recreated: %t", recreated)
	}
}
