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
		require.Equal(t, transfer.New, s.state().Phase)
		s.clock.Step(s.Limits.PrepareTimeout)
		if exists {
			s.classes["late"] = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}}
		}
		s.step(t)
		require.Equal(t, phase, s.state().Phase)
		require.Equal(t, !exists, s.state().Message == "not ready to be prepared within 30m0s: storage class late of claim app/data does not exist")
	}
}

func TestADownloadWithoutAConsumerDoesNotWaitForOne(t *testing.T) {
	for name, change := range map[string]func(*velerov2alpha1.DataDownload){
		"in place, its consumers had to be deleted": func(d *velerov2alpha1.DataDownload) { d.Spec.TargetVolume.PV = "existing" },
		"into a scratch claim": func(d *velerov2alpha1.DataDownload) {
			d.Labels = map[string]string{api.LabelVerify: "nightly"}
			d.Spec.TargetVolume.Namespace, d.Spec.TargetVolume.PVC = d.Namespace, d.Name+"-scratch"
		},
	} {
		s := newDownload("late")
		change(s.object)
		late := storagev1.VolumeBindingWaitForFirstConsumer
		s.classes["late"] = &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "late"}, VolumeBindingMode: &late}
		s.step(t)
		require.Equal(t, transfer.Accepted, s.state().Phase, name)
	}
}

// TestALateWatchDoesNotFailADownload has a claim whose watch shows nothing within the prepare timeout.
func TestALateWatchDoesNotFailADownload(t *testing.T) {
	for name, test := range map[string]struct {
		exists  bool
		phase   transfer.Phase
		message string
	}{
		"the claim exists": {exists: true, phase: transfer.Accepted},
		"it does not":      {phase: transfer.Failed, message: "claim app/data does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newDownload("")
			s.target.known = false
			require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
			require.Empty(t, s.kube.Actions(), "its watch is enough")
			if test.exists {
				require.NoError(t, s.kube.Tracker().Add(s.target.claim))
			}
			s.clock.Step(s.Limits.PrepareTimeout)
			s.step(t)
			require.Equal(t, test.phase, s.state().Phase)
			require.Contains(t, s.state().Message, test.message)
		})
	}
}

// cancels cancels a transfer in a phase, while no pod can be read.
func cancels[T transfer.Object](t *testing.T, s *single[T], phase transfer.Phase) {
	t.Helper()
	s.failing = errors.New("no answer")
	state := s.state()
	state.Phase, state.Cancel = phase, true
	s.Kind.Set(s.object, state)
	s.step(t)
	require.Equal(t, transfer.Canceled, s.state().Phase)
	require.Contains(t, s.sent(), "Normal Canceled Canceled. "+s.state().Message)
}

// TestACancelIsHonoredDespiteReadErrors covers the phases in which no mover was started.
func TestACancelIsHonoredDespiteReadErrors(t *testing.T) {
	for _, phase := range []transfer.Phase{"", transfer.New, transfer.Accepted, transfer.Prepared} {
		t.Run(string(phase), func(t *testing.T) {
			cancels(t, newDownload("never-made"), phase)
			cancels(t, newBackup(), phase)
			cancels(t, newRestore(), phase)
		})
	}
}

func TestACancelIsHonoredThoughThePodIsUnreadable(t *testing.T) {
	s := newRestore()
	s.pods["app/db"] = targetOn(testNode)
	s.step(t)
	delete(s.pods, "app/db")
	s.failing = errors.New("no answer")
	_, err := s.Reconcile(t.Context(), testKey)
	require.ErrorContains(t, err, "get pod app/db: no answer")
	s.object.Spec.Cancel = true
	s.step(t)
	require.Equal(t, transfer.Canceled, s.state().Phase)
}

func TestABackupOfAPodThatCannotExistFails(t *testing.T) {
	for i, reference := range []corev1.ObjectReference{{Namespace: "app"}, {Name: "db"}, {Namespace: "app", Name: "d/b"}, {Namespace: "..", Name: "db"}} {
		s := newBackup()
		if i > 0 {
			s.pods[testKey] = moverPod()
			s.pods[testKey].Status = corev1.PodStatus{Phase: corev1.PodPending}
		}
		s.object.Spec.Pod = reference
		s.failing = errors.New("resource name may not be empty") // client-go's error for such names
		s.step(t)
		require.Equal(t, transfer.Accepted, s.state().Phase)
		s.step(t)
		require.Equal(t, transfer.Failed, s.state().Phase, "%+v", reference)
		require.Contains(t, s.state().Message, "does not exist")
		require.Equal(t, transfer.ReasonSourceGone, transfer.FailureOf(s.object))
	}
}

func TestABackupOfAPodThatHasEndedFails(t *testing.T) {
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

func TestARestoreToAPodThatCannotExistFails(t *testing.T) {
	s := newRestore()
	s.object.Spec.Pod = corev1.ObjectReference{Namespace: "app"}
	s.failing = errors.New("resource name may not be empty")
	s.step(t)
	s.clock.Step(s.Limits.PrepareTimeout)
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
	require.Contains(t, s.state().Message, "pod app/ does not exist")
}

func TestThePrepareTimeoutAppliesDespiteReadErrors(t *testing.T) {
	s := newBackup()
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	s.failing = apierrors.NewForbidden(corev1.Resource("pods"), "db", errors.New("no rights"))
	_, err := s.Reconcile(t.Context(), testKey)
	require.ErrorContains(t, err, "no rights")
	s.clock.Step(s.Limits.PrepareTimeout)
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
	require.Contains(t, s.state().Message, "no rights")
}

func TestADownloadCountsForTheStorageClassOfItsTarget(t *testing.T) {
	s := newDownload("slow")
	s.classes["slow"] = &storagev1.StorageClass{}
	s.Preparing.SetLimits(capacity.Limits{StorageClasses: map[string]int{"slow": 1}})
	another := capacity.Transfer{UID: "another", StorageClass: "slow"}
	s.Preparing.Track(another, capacity.Starting, "", nil)
	s.step(t)
	require.Equal(t, transfer.New, s.state().Phase)
	s.Preparing.Release("another")
	s.target.known = true
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	require.False(t, s.Preparing.TryAcquire(another, func() {}))
	s.target.claim = nil
	require.Equal(t, "slow", s.place(s.object, s.state(), "").StorageClass, "a coordinator that did not accept it does not watch the claim")
}

func TestAnUploadCountsForTheStorageClassOfItsSource(t *testing.T) {
	upload := &velerov2alpha1.DataUpload{}
	upload.Spec.CSISnapshot = &velerov2alpha1.CSISnapshotSpec{StorageClass: "slow"}
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
	require.False(t, s.Preparing.TryAcquire(younger, func() { s.Enqueue("younger") }))
	var enqueued []string
	s.Enqueue = func(key string) { enqueued = append(enqueued, key) }
	s.Preparing.Release("first")
	require.Equal(t, []string{testKey}, enqueued)
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t), "the time in the queue does not count")
	require.Equal(t, transfer.New, s.state().Phase, s.state().Message)
	require.False(t, s.Preparing.TryAcquire(younger, func() { s.Enqueue("younger") }))
	s.target.known = true
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	require.Len(t, enqueued, 1)
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
	require.Equal(t, transfer.New, s.state().Phase)
}

func TestARestoreNamesAPodThatDoesNotExistAtTheTimeout(t *testing.T) {
	s := newRestore()
	s.object.Spec.Pod.UID = ""
	s.Limits.PrepareTimeout = s.Limits.FetchTarget / 2
	require.Equal(t, s.Limits.PrepareTimeout, s.step(t))
	s.clock.Step(s.Limits.PrepareTimeout)
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
	require.Contains(t, s.state().Message, "pod app/db does not exist")
}

// TestTheCoordinatorFetchesAPodThatItDoesNotWatch has a restore to a pod without Velero's label.
func TestTheCoordinatorFetchesAPodThatItDoesNotWatch(t *testing.T) {
	s := newRestore()
	for _, node := range []string{"", "n2", "n2"} {
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
	require.Zero(t, s.step(t), "Velero's agent accepts it")
	require.Equal(t, transfer.New, s.state().Phase)
	s.Agent.Fleet = coordinatorFleet{}
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	require.Equal(t, []string{"n2", "n2"}, []string{s.state().Node, s.state().Exposer})
	require.Equal(t, []string{"n2"}, asked, "how many movers it may run")
}

func TestARestoreThatOnlyVeleroSupportsIsLeftToItsAgent(t *testing.T) {
	for fleet, want := range map[transfer.Fleet]transfer.Phase{coordinatorFleet{veleros: "n2"}: transfer.New, coordinatorFleet{}: transfer.Failed} {
		s := newRestore()
		s.object.Spec.UploaderType, s.Agent.Fleet = "restic", fleet
		s.step(t)
		require.Equal(t, transfer.New, s.state().Phase, "its pod has no node")
		s.pods["app/db"] = initializing()
		s.step(t)
		require.Equal(t, want, s.state().Phase)
	}
}

func TestARestoreFailsWhenItsPodWasRecreated(t *testing.T) {
	s := newRestore()
	s.pods["app/db"] = targetOn("n2")
	s.step(t)
	s.live["app/db"], s.pods["app/db"] = initializing(), initializing()
	s.live["app/db"].UID, s.pods["app/db"].UID = "another", "another"
	s.step(t)
	require.Equal(t, transfer.Failed, s.state().Phase)
}

func TestACancelDoesNotWaitForTheAgentOfADeletedPod(t *testing.T) {
	s := newRestore()
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	s.pods["app/db"] = targetOn("n2")
	s.step(t)
	delete(s.pods, "app/db")
	s.object.Spec.Cancel = true
	s.step(t)
	require.Equal(t, transfer.Canceled, s.state().Phase)
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
	count := func() (foreign map[string]int, age float64) {
		foreign = map[string]int{}
		for _, one := range s.Count([]*velerov2alpha1.DataDownload{s.object, taken, finished}) {
			require.Zero(t, one.Transfers, "they are not this agent's")
			if one.Foreign > 0 {
				foreign[one.Phase] = one.Foreign
			}
			if one.Phase == string(transfer.New) {
				age = one.ForeignAge
			}
		}
		return foreign, age
	}
	foreign, age := count()
	require.Equal(t, map[string]int{"New": 1, "InProgress": 1, "Completed": 1}, foreign)
	require.InDelta(t, 90, age, 0.001)
	s.Agent.Fleet = followerFleet{}
	foreign, age = count()
	require.Empty(t, foreign)
	require.Zero(t, age)
	s.step(t)
	require.Empty(t, s.events.Events)
}

func TestNothingIsReadOfASettledTransfer(t *testing.T) {
	s := newWorking()
	s.object.Status.Phase, s.pods = velerov1.PodVolumeBackupPhaseFailed, nil
	require.Zero(t, s.step(t))
	require.Empty(t, s.kube.Actions())
}

func TestAnUncachedMoverIsDeletedBeforeTheFinalizerIsRemoved(t *testing.T) {
	s := newFixture(t, fault{})
	for range 2 { // accept, create the mover
		_, err := s.Reconcile(t.Context(), testKey)
		require.NoError(t, err)
	}
	require.NotNil(t, s.Mover(testKey))
	s.object.Status.Phase = velerov1.PodVolumeBackupPhaseCanceled
	s.Pods = s.single // which caches nothing
	requeue, err := s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	require.Nil(t, s.Mover(testKey))
	require.NotEmpty(t, s.object.Finalizers)
	require.Positive(t, requeue, "no event of a pod that no cache has will come")
	_, err = s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	require.Empty(t, s.object.Finalizers)
}

func TestOnlyClaimsOfTheResourceAreItsLeftovers(t *testing.T) {
	for owner, left := range map[types.UID]bool{"b1-uid": true, "another": false} {
		s := newDownload("")
		s.object.Status.Phase, s.object.Finalizers = velerov2alpha1.DataDownloadPhaseFailed, []string{api.FinalizerData}
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{UID: "claim", OwnerReferences: []metav1.OwnerReference{{UID: owner, Controller: new(true)}}}}
		s.claims = map[string]*corev1.PersistentVolumeClaim{testKey: claim}
		request := s.observed(t)
		require.Equal(t, left, request.observed.HasLeftovers)
		require.Equal(t, left, len(s.found(request).Claims) == 1)
	}
}

func TestAMoverThatNoCacheHasIsNotLost(t *testing.T) {
	s := newRunning()
	s.pods["app/db"], s.live[testKey] = sourcePod(), moverPod()
	s.step(t)
	require.Equal(t, transfer.InProgress, s.state().Phase)
}

func TestADeletedResourceHoldsNothing(t *testing.T) {
	for name, end := range map[string]func(s *single[*velerov1.PodVolumeBackup]){
		"deleted": func(s *single[*velerov1.PodVolumeBackup]) {
			s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return nil, false }
		},
		"recreated": func(s *single[*velerov1.PodVolumeBackup]) {
			s.object = s.object.DeepCopy()
			s.object.UID, s.object.Status = "its successor", velerov1.PodVolumeBackupStatus{}
		},
	} {
		s := newWorking()
		s.step(t)
		require.Equal(t, 1, s.NodeSlots.On(testNode).InUse(), name)
		end(s)
		require.Zero(t, s.step(t), name)
		require.Zero(t, s.NodeSlots.On(testNode).InUse(), name)
		require.Zero(t, s.local.read(testKey).activeAt, name)
	}
}
