package reconcile

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// standsIn turns the fixture's agent into a coordinator on another node. A mover of n1 runs; only a kubelet or a force
// deletion removes its pod. It returns the grace periods of all deletions; -1 means the pod's own.
func (f *fixture) standsIn(t *testing.T, phase velerov1.PodVolumeBackupPhase) *[]int64 {
	t.Helper()
	f.steps(t, 2)
	f.kubelet(t)
	f.object.Status.Phase = phase
	f.Agent.Node, f.NodeSlots = "n2", capacity.NewNodeSlots(capacity.Same(1))
	var graces []int64
	f.kube.PrependReactor("delete", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		options := action.(clienttesting.DeleteActionImpl).DeleteOptions
		require.EqualValues(t, "mover-uid", *options.Preconditions.UID)
		graces = append(graces, ptr.Deref(options.GracePeriodSeconds, -1))
		if options.GracePeriodSeconds == nil {
			f.terminate(t)
		}
		return options.GracePeriodSeconds == nil, nil, nil
	})
	return &graces
}

// terminate marks the mover's pod as deleting. Its kubelet does not confirm the deletion.
func (f *fixture) terminate(t *testing.T) {
	t.Helper()
	pod := f.Mover(testKey)
	pod.DeletionTimestamp, pod.Finalizers = new(metav1.NewTime(f.clock.Now())), []string{"kubelet"}
	require.NoError(t, f.kube.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), pod, "velero"))
}

func TestAMoverIsForceDeletedOnlyOnceItsNodeIsLost(t *testing.T) {
	s := newFixture(t, fault{})
	graces := s.standsIn(t, velerov1.PodVolumeBackupPhaseFailed)
	s.Exposer.Snapshots, s.Agent.Fleet = &snapshots{failing: errors.New("a backup of a pod volume has none")}, coordinatorFleet{absent: testNode}
	s.steps(t, 3)
	require.Equal(t, []int64{-1}, *graces)
	require.NotEmpty(t, s.object.Finalizers, "the mover may still work")
	s.Agent.Fleet = coordinatorFleet{lost: testNode}
	s.clock.Step(s.Limits.CleanUpWarning)
	s.steps(t, 3)
	require.Equal(t, []int64{-1, 0}, *graces)
	require.Empty(t, s.object.Finalizers)
	require.NotRegexp(t, EventCleanUpWaits, s.sent())
	s = newFixture(t, fault{})
	s.standsIn(t, velerov1.PodVolumeBackupPhaseFailed)
	s.Agent.Fleet = coordinatorFleet{lost: testNode}
	s.step(t)
	require.Zero(t, s.calls["get pods/log"], "no kubelet answers")
}

func TestABackupWhoseAgentIsAwayFailsWithTheReason(t *testing.T) {
	s := newFixture(t, fault{})
	s.steps(t, 1) // accept it
	s.Agent = transfer.Agent{Node: "n2", Fleet: coordinatorFleet{absent: testNode}}
	s.steps(t, 1)
	require.Equal(t, velerov1.PodVolumeBackupPhaseAccepted, s.object.Status.Phase)
	s.clock.Step(s.Limits.PrepareTimeout)
	s.steps(t, 1)
	require.Equal(t, "not prepared within 30m0s: no ready node-agent on node n1", s.object.Status.Message)
}

func TestACoordinatorCountsTheMoversOfANodeBeforeItStandsIn(t *testing.T) {
	s := newFixture(t, fault{})
	s.standsIn(t, velerov1.PodVolumeBackupPhasePrepared) // a mover that waits for its slot
	s.TrackCapacity(s.object.DeepCopy())
	works := s.object.DeepCopy()
	works.Name, works.UID, works.Status.Phase = "works", "works-uid", velerov1.PodVolumeBackupPhaseInProgress
	s.TrackCapacity(works)
	require.Zero(t, s.NodeSlots.On(s.Agent.Node).InUse())
	s.Agent.Fleet = coordinatorFleet{absent: testNode}
	s.steps(t, 3)
	require.Equal(t, velerov1.PodVolumeBackupPhasePrepared, s.object.Status.Phase, "two movers where one may work")
	works.Status.Phase = velerov1.PodVolumeBackupPhaseCompleted
	s.TrackCapacity(works)
	s.steps(t, 1)
	require.Equal(t, velerov1.PodVolumeBackupPhaseInProgress, s.object.Status.Phase)
}

// evicted returns a PodVolumeBackup whose mover was evicted, though its pod still exists.
func evicted(t *testing.T, phase velerov1.PodVolumeBackupPhase) *single[*velerov1.PodVolumeBackup] {
	t.Helper()
	s := newWorking()
	s.object.Status.Phase = phase
	s.pods[testKey].Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted", Message: "low on memory"}
	s.live[testKey], s.live["app/db"] = s.pods[testKey], s.pods["app/db"]
	require.NoError(t, s.kube.Tracker().Add(s.pods[testKey]))
	s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		delete(s.live, testKey)
		delete(s.pods, testKey)
		return false, nil, nil
	})
	return s
}

func TestAFailedMoverIsDeletedBeforeItsTransferReturnsToAccepted(t *testing.T) {
	for _, phase := range []velerov1.PodVolumeBackupPhase{velerov1.PodVolumeBackupPhasePrepared, velerov1.PodVolumeBackupPhaseInProgress} {
		s, registry := evicted(t, phase), prometheus.NewRegistry()
		s.Metrics = metrics.New(registry, "test", testNode)
		var phases []string
		s.OnUpdate = func(_ *velerov1.PodVolumeBackup, before, after transfer.State) {
			phases = append(phases, string(before.Phase+" to "+after.Phase))
		}
		s.step(t)
		require.Empty(t, s.live[testKey])
		require.Zero(t, s.state().Restarts, "an agent of Velero cancels a resource that is Accepted while its mover has failed")
		s.step(t)
		require.Equal(t, []any{transfer.Accepted, 1, "mover was evicted: low on memory"}, []any{s.state().Phase, s.state().Restarts, s.state().Message})
		require.Equal(t, []string{string(phase) + " to Accepted"}, phases, "reported once")
		require.Zero(t, s.NodeSlots.On(testNode).InUse())
		restarts, err := testutil.GatherAndCount(registry, "lateen_mover_restarts_total")
		require.NoError(t, err)
		require.Equal(t, 1, restarts)
		require.Equal(t, []string{"Warning MoverRestarted mover was evicted: low on memory; restart 1 of 3"}, s.sent())
	}
}

// The coordinator asks for the slots of another node only before it starts a mover there: the node may be gone.
func TestALostMoverNeedsNoSlots(t *testing.T) {
	s := evicted(t, velerov1.PodVolumeBackupPhasePrepared)
	s.Agent = transfer.Agent{Node: "n2", Fleet: coordinatorFleet{absent: testNode}}
	s.LearnSlots = func(context.Context, string) error { return errors.New("no answer") }
	s.steps(t, 2)
	require.Equal(t, 1, s.state().Restarts)
	s = newWorking()
	s.object.Status.Phase, s.Agent = velerov1.PodVolumeBackupPhasePrepared, transfer.Agent{Node: "n2", Fleet: coordinatorFleet{absent: testNode}}
	s.LearnSlots = func(_ context.Context, node string) error { return errors.New("no answer of " + node) }
	s.stepFails(t, "no answer of "+testNode)
}

// TestALostMoverThatCannotBeDeletedIsCountedAfterTheGracePeriod has a webhook that refuses the deletion.
func TestALostMoverThatCannotBeDeletedIsCountedAfterTheGracePeriod(t *testing.T) {
	s := evicted(t, velerov1.PodVolumeBackupPhaseInProgress)
	s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "b1", errors.New("no deletions"))
	})
	logs := 0
	s.MoverLog = func(context.Context, string, []byte) { logs++ }
	s.pods[testKey].Status = corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: ended(137, "")}
	s.stepFails(t, "no deletions")
	require.Equal(t, transfer.InProgress, s.state().Phase)
	require.Equal(t, 1, logs)
	s.clock.Step(s.Limits.TerminationGrace)
	s.becomes(t, transfer.Accepted)
	require.Regexp(t, "^mover was killed on node n1", s.state().Message)
	require.Zero(t, s.NodeSlots.On(testNode).InUse())
}

func TestAMoverThatFailsBeforeItIsReadyIsDeletedBeforeTheNextWrite(t *testing.T) {
	s := evicted(t, velerov1.PodVolumeBackupPhaseAccepted)
	deletions, updates := 0, 0
	s.OnUpdate = func(*velerov1.PodVolumeBackup, transfer.State, transfer.State) { updates++ }
	s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) { // the kubelet confirms it later
		s.pods[testKey].DeletionTimestamp, s.pods[testKey].Status.Reason = new(metav1.NewTime(s.clock.Now())), ""
		deletions++
		return true, nil, nil
	})
	for range 2 {
		require.Equal(t, s.Limits.PlaceTimeout, s.step(t))
		require.Zero(t, s.state().Restarts)
		require.Equal(t, 1, deletions)
	}
	delete(s.pods, testKey)
	delete(s.live, testKey)
	s.step(t)
	require.Equal(t, []any{transfer.Accepted, 1, "mover was evicted: low on memory"}, []any{s.state().Phase, s.state().Restarts, s.state().Message})
	require.Equal(t, "Warning MoverRestarted mover was evicted: low on memory; restart 1 of 3", <-s.events.Events)
	require.Equal(t, 1, updates)
	s.Limits.RestartDelay /= 2
	require.Equal(t, s.Limits.RestartDelay, s.step(t))
}

func TestAnEarlierMoverOfALateCacheIsNotTheCurrentOne(t *testing.T) {
	for _, owner := range []types.UID{"", "another"} { // it is deleted; another resource has a pod of its name
		s := newWorking()
		s.object.Annotations = map[string]string{api.AnnotationRestarts: "1"}
		if owner != "" {
			s.live[testKey] = s.pods[testKey].DeepCopy()
			s.live[testKey].OwnerReferences[0].UID = owner
		}
		s.step(t)
		require.Equal(t, []any{transfer.Accepted, 2}, []any{s.state().Phase, s.state().Restarts})
	}
}

// inactivity returns the value of the metric.
func (s *single[T]) inactivity() (longest time.Duration) {
	for _, one := range s.Count([]T{s.object}) {
		longest = max(longest, time.Duration(one.Silence*float64(time.Second)))
	}
	return longest
}

func TestAMoverThatReportsNothingForTooLongIsReplaced(t *testing.T) {
	s := newWorking()
	timeout, mover, logs := s.Limits.StallTimeout, s.pods[testKey], 0
	s.MoverLog = func(context.Context, string, []byte) { logs++ }
	require.Equal(t, timeout, s.step(t))
	s.clock.Step(timeout - time.Second)
	require.Equal(t, timeout-time.Second, s.inactivity())
	require.Equal(t, time.Second, s.step(t))
	s.clock.Step(time.Second)
	s.step(t)
	require.True(t, s.kube.Actions()[1].Matches("delete", "pods"))
	require.Equal(t, 1, logs, "saved before")
	require.Equal(t, []any{transfer.InProgress, 0}, []any{s.state().Phase, s.state().Restarts}, "its mover works")
	delete(s.pods, testKey)
	s.step(t)
	stalled := "mover stalled: no byte moved and no Event sent within 2h0m0s"
	require.Equal(t, []any{transfer.Accepted, 1, stalled}, []any{s.state().Phase, s.state().Restarts, s.state().Message})
	require.Zero(t, s.inactivity())
	s.object.Status.Phase, s.object.Status.StartTimestamp = velerov1.PodVolumeBackupPhaseInProgress, &metav1.Time{Time: s.clock.Now()} // with the next
	s.pods[testKey], mover.Annotations = mover, map[string]string{api.AnnotationAttempt: "1"}
	require.Equal(t, timeout, s.step(t), "the time of the first one does not count")
	mover.DeletionTimestamp = &metav1.Time{Time: s.clock.Now()}
	require.Equal(t, s.Limits.TerminationGrace, s.step(t))
	s.clock.Step(s.Limits.TerminationGrace)
	s.step(t)
	require.NotRegexp(t, EventCleanUpWaits, s.sent(), "it is replaced")
}

func TestATerminatingMoverOnAReadyNodeIsReportedOnce(t *testing.T) {
	s := newFixture(t, fault{})
	s.standsIn(t, velerov1.PodVolumeBackupPhaseFailed)
	s.Agent.Node, s.NodeSlots = testNode, capacity.NewNodeSlots(capacity.Same(1))
	s.sent()
	s.terminate(t)
	s.clock.Step(time.Hour) // the clock of the API server is behind
	require.Equal(t, s.Limits.CleanUpWarning, s.step(t))
	require.Empty(t, s.events.Events, "it has had no time to end")
	s.clock.Step(s.Limits.CleanUpWarning)
	s.steps(t, 3)
	require.NotEmpty(t, s.object.Finalizers, "the mover may still run")
	unconfirmed := "Mover pod b1 is being deleted, but the kubelet of node n1 has not confirmed its end within 1m0s"
	require.Equal(t, []string{"Warning CleanUpWaits " + unconfirmed + ": see kubectl -n velero describe pod b1 and the kubelet's log"}, s.sent())
}

func TestAMoverIsNotPreparedBeforeItsClaimHasAVolume(t *testing.T) {
	s := newUpload(velerov2alpha1.DataUploadPhaseAccepted)
	s.object.Status.AcceptedTimestamp, s.object.Annotations = &metav1.Time{Time: s.clock.Now()}, map[string]string{api.AnnotationExposer: testNode}
	s.pods[testKey], s.claims = moverPod(), map[string]*corev1.PersistentVolumeClaim{testKey: {ObjectMeta: moverPod().ObjectMeta}}
	require.Equal(t, ConflictRequeue, s.step(t), "its cache is behind")
	require.Equal(t, transfer.Accepted, s.state().Phase)
}

func TestATerminatingMoverWithAClaimIsReported(t *testing.T) {
	s := newDownload("")
	s.object.Status.Phase, s.object.Finalizers = velerov2alpha1.DataDownloadPhaseFailed, []string{api.FinalizerData}
	s.pods[testKey], s.claims = moverPod(), map[string]*corev1.PersistentVolumeClaim{testKey: {ObjectMeta: moverPod().ObjectMeta}}
	require.Zero(t, s.step(t), "events report the deletions")
	deleted := metav1.NewTime(s.clock.Now())
	s.pods[testKey].DeletionTimestamp, s.claims[testKey].DeletionTimestamp = &deleted, &deleted // pvc-protection keeps the claim
	require.Equal(t, s.Limits.CleanUpWarning, s.step(t))
	s.clock.Step(s.Limits.CleanUpWarning)
	require.Zero(t, s.step(t))
	require.Regexp(t, "Warning CleanUpWaits Mover pod b1 is being deleted", s.sent())
	delete(s.pods, testKey)
	s.claims[testKey].UID = "that of an earlier attempt"
	s.kube.ClearActions()
	s.step(t)
	require.Len(t, s.kube.Actions(), 1)
}

func TestASnapshotThatIsNotDeletedInTimeIsReportedOnce(t *testing.T) {
	s := newDownload("")
	request := s.newRequest(testKey, s.object)
	request.state.CompletedAt, request.observed.Now = s.clock.Now(), s.clock.Now().Add(s.Limits.CleanUpWarning-time.Second)
	require.Equal(t, time.Second, s.cleanUpWaits(t.Context(), request, "its driver"))
	require.Empty(t, s.sent())
	request.observed.Now = request.observed.Now.Add(time.Second)
	for range 2 {
		require.Zero(t, s.cleanUpWaits(t.Context(), request, "its driver"), "its event ends the wait")
	}
	require.Equal(t, []string{"Warning CleanUpWaits Snapshot is not deleted yet: its driver"}, s.sent())
}

// snapshots is a cluster without VolumeSnapshots, or one that does not answer whether it has any.
type snapshots struct {
	exposer.Snapshots
	asked   int
	failing error
}

func (s *snapshots) Available(context.Context) (bool, error) {
	s.asked++
	return false, s.failing
}

func TestAMoverAndItsSnapshotAreDeletedOnce(t *testing.T) {
	s, snapshots := newUpload(velerov2alpha1.DataUploadPhaseFailed), &snapshots{failing: errors.New("discovery failed")}
	s.Exposer.Snapshots, s.pods[testKey] = snapshots, moverPod()
	s.stepFails(t, "discovery failed")
	s.stepFails(t, "discovery failed")
	snapshots.failing = nil
	s.steps(t, 2)
	deletes := slices.DeleteFunc(s.kube.Actions(), func(action clienttesting.Action) bool { return action.GetVerb() != "delete" })
	require.Len(t, deletes, 1)
	require.Equal(t, 3, snapshots.asked)
}

func TestARefusedDeletionIsReportedOnce(t *testing.T) {
	for phase, events := range map[velerov1.PodVolumeBackupPhase][]string{"Canceling": nil, "Failed": {"Warning MoverLog " + logMessage("fake logs")}} {
		s := newFixture(t, fault{})
		s.standsIn(t, phase)
		s.Agent.Node, s.NodeSlots = testNode, capacity.NewNodeSlots(capacity.Same(1))
		s.sent()
		s.kube.PrependReactor("delete", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(corev1.Resource("pods"), "b1", errors.New("by policy"))
		})
		for range 3 {
			s.stepFails(t, "by policy")
		}
		require.Equal(t, append(events, `Warning CleanUpWaits delete mover pod b1: pods "b1" is forbidden: by policy`), s.sent())
	}
}

func TestAMoverThatVanishesBeforeItRunsIsCounted(t *testing.T) {
	s := newFixture(t, fault{call: "patch podvolumebackups", ordinal: 2, err: errors.New("timeout"), committed: true})
	s.steps(t, 2) // accept it, create the mover
	require.NoError(t, s.kube.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("pods"), "velero", "b1"))
	cached := s.object.DeepCopy()
	s.stepFails(t, "timeout")
	require.Equal(t, []any{1, "mover pod vanished"}, []any{s.state().Restarts, s.state().Message})
	s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return cached.DeepCopy(), true }
	s.steps(t, 1) // with a late cache
	cached = s.object
	s.steps(t, 1)
	require.Equal(t, []string{"Warning MoverRestarted mover pod vanished; restart 1 of 3"}, s.sent())
}
