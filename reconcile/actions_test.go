package reconcile

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

func TestTransfersAreCountedByPhaseAndAge(t *testing.T) {
	s := newFixture(t, fault{})
	s.clock.Step(time.Hour)
	s.Agent.Fleet = coordinatorFleet{absent: "n2"}
	backup := func(node string, phase velerov1.PodVolumeBackupPhase, accepted time.Duration) *velerov1.PodVolumeBackup {
		created := s.object.DeepCopy()
		created.Spec.Node, created.Status.Phase = node, phase
		if accepted > 0 {
			created.Finalizers, created.Status.CompletionTimestamp = []string{s.Kind.Finalizer}, new(metav1.NewTime(s.clock.Now().Add(-time.Minute)))
			at := metav1.NewTime(s.object.CreationTimestamp.Add(accepted))
			created.Status.AcceptedTimestamp, created.Status.StartTimestamp = &at, new(metav1.NewTime(at.Add(time.Minute)))
		}
		return created
	}
	found := map[string]metrics.Count{}
	for _, count := range s.Count([]*velerov1.PodVolumeBackup{
		backup(testNode, "", 0),
		backup("", "", 0),
		backup(testNode, velerov1.PodVolumeBackupPhaseAccepted, 0),
		backup(testNode, velerov1.PodVolumeBackupPhasePrepared, 20*time.Minute),
		backup("n2", velerov1.PodVolumeBackupPhasePrepared, 50*time.Minute),
		backup("n2", velerov1.PodVolumeBackupPhaseCompleted, time.Minute),
		backup("n3", velerov1.PodVolumeBackupPhasePrepared, time.Minute), // its own agent counts it
		backup("", velerov1.PodVolumeBackupPhaseFailed, 0),
		backup(testNode, velerov1.PodVolumeBackupPhaseInProgress, 29*time.Minute),
	}) {
		found[count.Phase] = count
	}
	require.Len(t, found, len(transfer.Phases()))
	require.Equal(t, metrics.Count{
		Kind: "podvolumebackup", Phase: "New", Transfers: 2, OldestAge: 3600, MaxPhaseAge: 3600, Unattended: map[string]int{},
	}, found["New"], "what has no phase yet is New")
	require.InDelta(t, 3600, found["Accepted"].MaxPhaseAge, 0, "without a time it counts from the creation")
	require.Equal(t, metrics.Count{
		Kind: "podvolumebackup", Phase: "Prepared", Transfers: 2, OldestAge: 3600, MaxPhaseAge: 2400, Unattended: map[string]int{"n2": 1},
	}, found["Prepared"])
	require.Equal(t, metrics.Count{
		Kind: "podvolumebackup", Phase: "Completed", Terminal: true, Transfers: 1, OldestAge: 3600, MaxPhaseAge: 60, Unattended: map[string]int{},
	}, found["Completed"], "a terminal transfer needs no agent")
	require.Equal(t, 1, found["Failed"].Transfers, "the coordinator counts what has no node")
	require.InDelta(t, 1800, found["InProgress"].MaxPhaseAge, 0)
	require.Zero(t, found["Failed"].MaxPhaseAge+float64(found["Canceling"].Transfers), "the clean-up of the failed one is complete")
	s.Agent.Fleet = followerFleet{}
	require.Zero(t, s.Count([]*velerov1.PodVolumeBackup{backup("", "", 0)})[0].Transfers, "the coordinator counts it")
}

func TestTheEventOfALogHasItsEnd(t *testing.T) {
	message := logMessage(strings.Repeat("early\n", 1<<10) + "cause")
	require.LessOrEqual(t, len(message), maxEventBytes)
	require.Regexp(t, "^Last lines of the mover log: (?s:.*)cause$", message)
}

func TestHappyPathTakesSevenWritesAndNoReadButTheLog(t *testing.T) {
	s, registry := newFixture(t, fault{}), prometheus.NewRegistry()
	s.Metrics = metrics.New(registry, "test", testNode)
	var phases, logs []string
	s.OnUpdate = func(object *velerov1.PodVolumeBackup, before, after transfer.State) {
		phases = append(phases, fmt.Sprint(object.Name, ": ", before.Phase, " to ", after.Phase))
	}
	s.MoverLog = func(_ context.Context, mover string, text []byte) { logs = append(logs, mover+": "+string(text)) }
	s.run(t)
	require.Equal(t, map[string]int{"patch podvolumebackups": 5, "create pods": 1, "delete pods": 1, "get pods/log": 1}, s.calls)
	require.Zero(t, s.lists)
	require.Empty(t, transfer.FailureOf(s.object))
	require.Equal(t, []string{"b1: New to Accepted", "b1: Accepted to Prepared", "b1: Prepared to InProgress", "b1: InProgress to Completed"}, phases)
	require.Equal(t, []string{"velero/b1: fake logs"}, logs)
	require.Equal(t, []string{"Normal Completed Moved 10 bytes in 1s"}, s.sent())
	families, err := registry.Gather()
	require.NoError(t, err)
	counted := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			if !strings.HasPrefix(name, "lateen_") {
				continue
			}
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			if seconds := metric.GetHistogram(); seconds.GetSampleCount() > 0 {
				counted[name] = seconds.GetSampleSum()
			} else if value := metric.GetCounter().GetValue(); value > 0 {
				counted[name] = value
			}
		}
	}
	require.Equal(t, map[string]float64{
		"lateen_bytes_moved_total podvolumebackup": 10, "lateen_transfers_finished_total podvolumebackup Completed completed": 1,
		"lateen_transfer_phase_duration_seconds podvolumebackup New": 0, "lateen_transfer_phase_duration_seconds podvolumebackup Accepted": 2,
		"lateen_transfer_phase_duration_seconds podvolumebackup Prepared": 1, "lateen_transfer_phase_duration_seconds podvolumebackup InProgress": 1,
	}, counted)
}

// observed observes a resource and reserves nothing.
func (s *single[T]) observed(t *testing.T) *request[T] {
	t.Helper()
	request := s.newRequest(testKey, s.object)
	require.NoError(t, s.observe(t.Context(), request))
	require.Empty(t, s.events.Events)
	require.Zero(t, s.NodeSlots.On(testNode).InUse())
	require.Zero(t, s.target.watched)
	require.Equal(t, testNode, request.spec.ExposingNode)
	return request
}

func TestObservingReservesNothing(t *testing.T) {
	t.Run("a slot of a mover that works", func(t *testing.T) {
		s := newWorking()
		s.reserve(s.observed(t))
		require.Equal(t, 1, s.NodeSlots.On(testNode).InUse())
		s.object.Status.Phase = velerov1.PodVolumeBackupPhaseFailed
		s.step(t)
		require.Zero(t, s.NodeSlots.On(testNode).InUse())
	})
	t.Run("a slot of a mover that is ready", func(t *testing.T) {
		s := newWorking()
		s.object.Status.Phase = "Prepared"
		request := s.observed(t)
		require.True(t, s.NodeSlots.TryAcquire(testNode, capacity.Transfer{UID: "another", Created: s.clock.Now()}, func() {}), "nothing is queued before it")
		s.reserve(request)
		require.False(t, request.observed.HasSlot)
	})
	t.Run("a place", func(t *testing.T) {
		s := newDownload("")
		request := s.observed(t)
		require.True(t, request.observed.Eligible)
		require.False(t, request.observed.Admitted)
		s.reserve(request)
		require.True(t, request.observed.Admitted)
	})
	t.Run("the watch of a target claim", func(t *testing.T) {
		s := newDownload("")
		s.target.known = false
		s.reserve(s.observed(t))
		require.NotZero(t, s.target.watched)
	})
}

func TestAFailedObservationKeepsTheSlotOnlyWhileTheMoverMayWork(t *testing.T) {
	for phase, slots := range map[string]int{"InProgress": 1, "Prepared": 1, "Failed": 0} {
		t.Run(phase, func(t *testing.T) {
			s := newWorking()
			s.step(t)
			require.Equal(t, 1, s.NodeSlots.On(testNode).InUse())
			s.object.Status.Phase, s.failing = velerov1.PodVolumeBackupPhase(phase), errors.New("no answer")
			delete(s.pods, testKey)
			delete(s.pods, "app/db")
			s.object.Finalizers = []string{api.FinalizerPodVolume}
			s.kube.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, s.failing })
			_, err := s.Reconcile(t.Context(), testKey)
			require.Error(t, err)
			require.Equal(t, slots, s.NodeSlots.On(testNode).InUse())
		})
	}
}

func TestAnEventOfAPreparedTransferKeepsItsPlaceInTheQueueForASlot(t *testing.T) {
	s := newWorking()
	s.object.Status.Phase = velerov1.PodVolumeBackupPhasePrepared
	require.True(t, s.NodeSlots.Queue(testNode, s.object.UID, s.clock.Now(), func() {}))
	s.TrackCapacity(s.object)
	require.False(t, s.NodeSlots.Queue(testNode, "younger", s.clock.Now().Add(1), func() {}))
}

func TestAPreparedTransferWithoutARunningMoverHoldsNoPlaceInTheQueueForASlot(t *testing.T) {
	s := newWorking()
	s.object.Status.Phase = velerov1.PodVolumeBackupPhasePrepared
	s.pods[testKey].Status.Phase = corev1.PodPending
	s.reserve(s.observed(t))
	require.True(t, s.NodeSlots.Queue(testNode, "younger", s.clock.Now(), func() {}), "the older one cannot start")
}

// newPaced returns a backup, and the only place of its node, which another one has.
func newPaced() *single[*velerov1.PodVolumeBackup] {
	s := newBackup()
	s.live["app/db"], s.pods["app/db"] = sourcePod(), sourcePod()
	s.Preparing = capacity.FixedPreparation(1)
	s.Preparing.Track(capacity.Transfer{UID: "another", Home: testNode}, capacity.Starting, "", nil)
	return s
}

// free reports whether the place is free, without taking it.
func free(p *capacity.Preparation) bool {
	const probe = types.UID("probe")
	defer p.Release(probe)
	return p.TryAcquire(capacity.Transfer{UID: probe, Home: testNode, Created: metav1.Now().Time}, func() {})
}

func TestABackupIsAcceptedWhenAPlaceIsFree(t *testing.T) {
	s := newPaced()
	enqueued := 0
	s.Enqueue = func(string) { enqueued++ }
	for range 2 {
		require.Zero(t, s.step(t), "an event ends the wait")
		require.Equal(t, transfer.New, s.state().Phase)
	}
	s.Preparing.Release("another")
	require.Equal(t, 1, enqueued)
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	require.False(t, free(s.Preparing))
}

func TestTheCoordinatorAcceptsABackupForTheAgentOfItsNode(t *testing.T) {
	s := newBackup()
	s.live["app/db"], s.pods["app/db"] = sourcePod(), sourcePod()
	s.object.Spec.Node = "n2"
	var asked []string
	s.LearnSlots = func(_ context.Context, node string) error {
		if asked = append(asked, node); len(asked) == 1 {
			return errors.New("no answer")
		}
		return nil
	}
	_, err := s.Reconcile(t.Context(), testKey)
	require.ErrorContains(t, err, "no answer")
	require.Equal(t, transfer.New, s.state().Phase)
	s.step(t)
	require.Equal(t, []string{"n2", "n2"}, asked)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	require.Equal(t, "n2", s.state().Exposer, "the agent that creates the mover")
	s.step(t)
	require.Nil(t, s.pods[testKey], "the coordinator creates none")
	s.Agent = transfer.Agent{Node: "n2", Fleet: followerFleet{}}
	s.step(t)
	_, err = s.kube.CoreV1().Pods("velero").Get(t.Context(), "b1", metav1.GetOptions{})
	require.NoError(t, err)
}

func TestTheLabelNamesTheNodeWhoseAgentActs(t *testing.T) {
	s := newBackup()
	s.object.Spec.Node = "n2"
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	require.Equal(t, "n2", s.object.Labels[api.LabelNode])
	for fleet, want := range map[coordinatorFleet]struct {
		label string
		left  time.Duration // until its place is given to the next; the event of a write comes before that
	}{{veleros: "n2"}: {left: s.Limits.PlaceTimeout}, {}: {label: "n2"}} {
		s.Agent.Fleet = fleet
		delete(s.object.Labels, api.LabelNode)
		require.Equal(t, want.left, s.step(t))
		require.Equal(t, want.label, s.object.Labels[api.LabelNode], "%+v: only an agent of Lateen needs it", fleet)
	}
	require.Equal(t, transfer.Accepted, s.state().Phase)
}

func TestARejectedAcceptanceGivesThePlaceBack(t *testing.T) {
	refused := apierrors.NewForbidden(corev1.Resource("podvolumebackups"), "b1", errors.New("no rights"))
	f := newFixture(t, fault{call: "patch podvolumebackups", ordinal: 1, err: refused})
	f.Preparing = capacity.FixedPreparation(1)
	_, err := f.Reconcile(t.Context(), testKey)
	require.ErrorContains(t, err, "no rights")
	require.True(t, free(f.Preparing))
}

// A mover that works needs no place in the queue. One that should work for long needs none on its node.
func TestATransferHoldsAPlaceUntilItsMoverEnds(t *testing.T) {
	for _, test := range []struct {
		phase         transfer.Phase
		node          string
		late          bool
		paced, queued bool // holds a place
	}{
		{phase: transfer.New, node: testNode},
		{phase: transfer.Accepted, node: testNode, paced: true, queued: true},
		{phase: transfer.Accepted, node: testNode, late: true, queued: true},
		{phase: transfer.Accepted, node: "n2", queued: true},
		{phase: transfer.Prepared, node: testNode, paced: true, queued: true},
		{phase: transfer.InProgress, node: testNode, paced: true},
		{phase: transfer.Failed, node: testNode},
	} {
		for places, held := range map[*capacity.Preparation]bool{capacity.FixedPreparation(1): test.paced, capacity.NewQueue(1, 1): test.queued} {
			s := newBackup()
			s.Preparing = places
			s.object.Spec.Node = test.node
			state := s.state()
			state.Phase, state.Exposer, state.AcceptedAt = test.phase, test.node, s.clock.Now()
			s.Kind.Set(s.object, state)
			if test.late {
				s.clock.Step(s.Limits.PlaceTimeout)
			}
			s.TrackCapacity(s.object)
			require.Equal(t, !held, free(places), "%+v", test)
			s.ReleaseCapacity(s.object.UID)
			require.True(t, free(places), "it is deleted: %+v", test)
		}
	}
}

func TestAMoverThatDoesNotRunGivesItsPlaceToTheNext(t *testing.T) {
	s := newPaced()
	s.Preparing.Release("another")
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	another, next := capacity.Transfer{UID: "next", Home: testNode, Created: s.clock.Now()}, 0
	require.False(t, s.Preparing.TryAcquire(another, func() { next++ }))
	s.step(t)
	created, err := s.kube.CoreV1().Pods("velero").Get(t.Context(), "b1", metav1.GetOptions{})
	require.NoError(t, err)
	s.pods[testKey] = created
	for left := s.Limits.PlaceTimeout; left > 0; left -= time.Second {
		require.Zero(t, next)
		require.LessOrEqual(t, s.step(t), left, "no event ends the wait for a node")
		s.clock.SetTime(s.clock.Now().Add(time.Second))
	}
	s.step(t)
	require.Equal(t, 1, next)
	s.TrackCapacity(s.object)
	require.True(t, s.Preparing.TryAcquire(another, func() {}), "an event of it changes nothing")
	require.Equal(t, transfer.Accepted, s.state().Phase, "it can still start")
}

// Its own agent exposes it, and the coordinator gives its place to the next.
func TestAMoverOfAnotherNodeThatDoesNotRunGivesItsPlaceToTheNext(t *testing.T) {
	s := newPaced()
	s.Preparing.Release("another")
	s.object.Spec.Node = "n2"
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	require.Equal(t, s.Limits.PlaceTimeout, s.step(t), "no event ends the wait")
	require.False(t, s.Preparing.TryAcquire(capacity.Transfer{UID: "next", Home: "n2"}, func() {}))
	s.clock.Step(s.Limits.PlaceTimeout)
	s.step(t)
	require.True(t, s.Preparing.TryAcquire(capacity.Transfer{UID: "next", Home: "n2"}, func() {}))
}

func TestAConflictIsRequeuedWithoutAnEvent(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "b1", errors.New("rejected by a webhook"))
	s := newFixture(t, fault{call: "patch podvolumebackups", ordinal: 1, err: conflict})
	requeue, err := s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	require.Positive(t, requeue, "no event follows: nothing was written")
}

func TestAnUnconfirmedStartKeepsItsSlotUntilTheCacheShowsIt(t *testing.T) {
	s := newFixture(t, fault{call: "patch podvolumebackups", ordinal: 3, err: errors.New("timeout"), committed: true})
	for range 3 { // accept, create the mover, mark it prepared
		_, err := s.Reconcile(t.Context(), testKey)
		require.NoError(t, err)
		s.kubelet(t)
	}
	require.Equal(t, velerov1.PodVolumeBackupPhasePrepared, s.object.Status.Phase)
	late := s.object.DeepCopy()
	s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return late.DeepCopy(), true }
	_, err := s.Reconcile(t.Context(), testKey)
	require.Error(t, err, "the write may have succeeded")
	require.Equal(t, velerov1.PodVolumeBackupPhaseInProgress, s.object.Status.Phase)
	_, err = s.Reconcile(t.Context(), testKey)
	require.NoError(t, err, "it is a conflict with itself")
	require.Equal(t, 4, s.calls["patch podvolumebackups"])
	require.Equal(t, 1, s.NodeSlots.On(testNode).InUse(), "another one could start beside it")
	s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return s.object.DeepCopy(), true }
	s.run(t)
	require.Zero(t, s.NodeSlots.On(testNode).InUse())
}

func TestARejectionIsReportedOncePerReason(t *testing.T) {
	refusal := func(why string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "b1", errors.New(why))
	}
	s := newFixture(t, fault{})
	_, err := s.Reconcile(t.Context(), testKey)
	require.NoError(t, err)
	require.Empty(t, s.events.Events, "the resource says that it is accepted")
	for i, err := range []error{
		refusal("exceeded quota: a"), refusal("exceeded quota: a"), errors.New("connection refused"), refusal("exceeded quota: b"),
		apierrors.NewInternalError(errors.New("failed calling webhook")), apierrors.NewTooManyRequestsError("busy"), apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "a", errors.New("in use")),
	} {
		s.fault = fault{call: "create pods", ordinal: i + 1, err: err}
		_, err := s.Reconcile(t.Context(), testKey)
		require.Error(t, err)
	}
	reported := s.sent()
	require.Len(t, reported, 3, "%q", reported)
	require.Regexp(t, "^Warning MoverCreateFailed .*exceeded quota: a", reported[0])
	require.Regexp(t, "^Warning MoverCreateFailed .*exceeded quota: b", reported[1])
	require.Regexp(t, "^Warning MoverCreateFailed .*failed calling webhook", reported[2])
}
