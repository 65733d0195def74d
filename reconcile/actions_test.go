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
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
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
		backup(testNode, "", 0), backup("", "", 0), backup(testNode, "Accepted", 0), backup("", "Failed", 0),
		backup(testNode, "Prepared", 20*time.Minute), backup("n2", "Prepared", 50*time.Minute),
		backup("n3", "Prepared", time.Minute), // its own agent counts it
		backup("n2", "Completed", time.Minute), backup(testNode, "InProgress", 29*time.Minute),
	}) {
		found[count.Phase] = count
	}
	require.Len(t, found, len(transfer.Phases()))
	kind, none := "podvolumebackup", map[string]int{}
	require.Equal(t, metrics.Count{Kind: kind, Phase: "New", Transfers: 2, OldestAge: 3600, MaxPhaseAge: 3600, Unattended: none}, found["New"])
	require.InDelta(t, 3600, found["Accepted"].MaxPhaseAge, 0, "without a time it counts from the creation")
	unattended := map[string]int{"n2": 1} // a terminal transfer needs no agent
	require.Equal(t, metrics.Count{Kind: kind, Phase: "Prepared", Transfers: 2, OldestAge: 3600, MaxPhaseAge: 2400, Unattended: unattended}, found["Prepared"])
	completed := metrics.Count{Kind: kind, Phase: "Completed", Terminal: true, Transfers: 1, OldestAge: 3600, MaxPhaseAge: 60, Unattended: none}
	require.Equal(t, completed, found["Completed"])
	require.Equal(t, 1, found["Failed"].Transfers, "the coordinator counts what has no node")
	require.InDelta(t, 1800, found["InProgress"].MaxPhaseAge, 0)
	require.Zero(t, found["Failed"].MaxPhaseAge+float64(found["Canceling"].Transfers), "the clean-up of the failed one is complete")
	s.Agent.Fleet = followerFleet{}
	require.Zero(t, s.Count([]*velerov1.PodVolumeBackup{backup("", "", 0), backup(testNode, "", 0)})[0].Transfers, "the coordinator counts them")
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
			name, seconds, count := family.GetName(), metric.GetHistogram(), metric.GetCounter().GetValue()
			for _, label := range metric.GetLabel() {
				name += " " + label.GetValue()
			}
			if strings.HasPrefix(name, "lateen_") && (seconds.GetSampleCount() > 0 || count > 0) {
				counted[name] = seconds.GetSampleSum() + count
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
	s := newWorking()
	s.reserve(s.observed(t))
	require.Equal(t, 1, s.NodeSlots.On(testNode).InUse())
	s.object.Status.Phase = velerov1.PodVolumeBackupPhaseFailed
	s.step(t)
	require.Zero(t, s.NodeSlots.On(testNode).InUse())
	s = newWorking()
	s.object.Status.Phase = "Prepared"
	request := s.observed(t)
	require.True(t, s.NodeSlots.TryAcquire(testNode, capacity.Transfer{UID: "another", Created: s.clock.Now()}, func() {}), "nothing is queued before it")
	s.reserve(request)
	require.False(t, request.observed.HasSlot)
	enqueued := 0
	s.Enqueue = func(string) { enqueued++ }
	require.NoError(t, s.write(t.Context(), request, transfer.Step{State: transfer.State{Phase: transfer.InProgress}}), "as if it had been free")
	s.NodeSlots.Release("another")
	require.Equal(t, 1, enqueued)
	d := newDownload("")
	place := d.observed(t)
	require.True(t, place.observed.Eligible)
	require.False(t, place.observed.Admitted)
	d.reserve(place)
	require.True(t, place.observed.Admitted)
	require.NotZero(t, d.target.watched, "until it is accepted")
	d.target = watchedClaim{}
	d.reserve(d.observed(t))
	require.NotZero(t, d.target.watched, "until it is known")
	d.step(t)
	d.attached.watched, d.restored.watched = d.target.watched, d.target.watched
	d.Cached = func(string) (*velerov2alpha1.DataDownload, bool) { return nil, false }
	d.step(t)
	require.Zero(t, [...]types.NamespacedName{d.target.watched, d.attached.watched, d.restored.watched}, "it is deleted")
}

func TestAFailedObservationKeepsTheSlotOnlyWhileTheMoverMayWork(t *testing.T) {
	for phase, slots := range map[string]int{"InProgress": 1, "Prepared": 1, "Failed": 0} {
		s := newWorking()
		s.step(t)
		require.Equal(t, 1, s.NodeSlots.On(testNode).InUse())
		s.object.Status.Phase, s.failing = velerov1.PodVolumeBackupPhase(phase), errors.New("no answer")
		clear(s.pods)
		s.object.Finalizers = []string{api.FinalizerPodVolume}
		s.kube.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, s.failing })
		s.stepFails(t, "no answer")
		require.Equal(t, slots, s.NodeSlots.On(testNode).InUse(), phase)
	}
}

func TestAPreparedTransferIsQueuedForASlotWhileItsMoverCanStart(t *testing.T) {
	s := newWorking()
	youngerIsNext := func() bool { return s.NodeSlots.Queue(testNode, "younger", s.clock.Now(), func() {}) }
	s.object.Status.Phase = velerov1.PodVolumeBackupPhasePrepared
	s.pods[testKey].Status.Phase = corev1.PodPending
	for name, held := range map[string]reservations{"it is another agent's": {}, "another restore to its pod runs": {delayed: true}} {
		request := s.observed(t)
		s.reserve(request)
		require.True(t, youngerIsNext(), "its mover does not run")
		request.reservations.slot = true
		s.reserve(request)
		s.TrackCapacity(s.object)
		require.False(t, youngerIsNext(), "an event changes nothing")
		request.reservations, request.observed.OwnsMover = held, held.delayed
		s.reserve(request)
		require.True(t, youngerIsNext(), name)
	}
}

// newPaced returns a backup, and the only place and the only slot of its node, which another one has.
func newPaced() *single[*velerov1.PodVolumeBackup] {
	s := newBackup()
	s.live["app/db"], s.pods["app/db"] = sourcePod(), sourcePod()
	s.Preparing = capacity.FixedPreparation(1)
	s.Preparing.Track(capacity.Transfer{UID: "another", Home: testNode}, capacity.Starting, "", nil)
	s.NodeSlots.ForceAcquire(testNode, "another")
	return s
}

// free reports whether the place is free, without taking it.
func free(p *capacity.Preparation) bool {
	const probe = types.UID("probe")
	defer p.Release(probe)
	return p.TryAcquire(capacity.Transfer{UID: probe, Home: testNode, Created: metav1.Now().Time}, func() {})
}

func TestABackupIsAcceptedWhenAPlaceIsFree(t *testing.T) {
	s, enqueued := newPaced(), 0
	s.Enqueue = func(string) { enqueued++ }
	require.Zero(t, s.step(t)+s.step(t), "an event ends the wait")
	require.Equal(t, transfer.New, s.state().Phase)
	s.Preparing.Release("another")
	require.Equal(t, 1, enqueued)
	s.becomes(t, transfer.Accepted)
	require.False(t, free(s.Preparing))
}

func TestTheCoordinatorAcceptsABackupForTheAgentOfItsNode(t *testing.T) {
	s := newPaced()
	s.object.Spec.Node = "n2"
	var asked []string
	s.LearnSlots = func(_ context.Context, node string) error {
		asked = append(asked, node)
		return []error{errors.New("no answer"), nil}[len(asked)-1]
	}
	s.stepFails(t, "no answer")
	require.Equal(t, transfer.New, s.state().Phase)
	s.step(t)
	require.Equal(t, []string{"n2", "n2"}, asked)
	require.Equal(t, []any{transfer.Accepted, "n2"}, []any{s.state().Phase, s.state().Exposer}) // the agent that creates the mover
	coordinator := s.Agent
	require.Equal(t, s.Limits.PlaceTimeout, s.step(t), "no event ends the wait for its start")
	require.Empty(t, s.kube.Actions(), "the coordinator creates no mover")
	s.Agent = transfer.Agent{Node: "n2", Fleet: followerFleet{}}
	require.Equal(t, s.Limits.PlaceTimeout, s.step(t))
	_, err := s.kube.CoreV1().Pods("velero").Get(t.Context(), "b1", metav1.GetOptions{})
	require.NoError(t, err)
	s.Agent = coordinator
	require.False(t, s.Preparing.TryAcquire(capacity.Transfer{UID: "next", Home: "n2"}, func() {}))
	s.clock.Step(s.Limits.PlaceTimeout)
	s.step(t)
	require.True(t, s.Preparing.TryAcquire(capacity.Transfer{UID: "next", Home: "n2"}, func() {}), "the next gets the place of a late one")
}

func TestTheLabelNamesTheNodeWhoseAgentActs(t *testing.T) {
	s := newBackup()
	s.object.Spec.Node = "n2"
	s.becomes(t, transfer.Accepted)
	require.Equal(t, "n2", s.object.Labels[api.LabelNode])
	for fleet, want := range map[transfer.Fleet]struct {
		label string
		left  time.Duration // until its place is given to the next; the event of a write comes before that
	}{coordinatorFleet{veleros: "n2"}: {left: s.Limits.PlaceTimeout}, coordinatorFleet{}: {label: "n2"}, followerFleet{}: {}} {
		s.Agent.Fleet = fleet
		delete(s.object.Labels, api.LabelNode)
		require.Equal(t, want.left, s.step(t))
		require.Equal(t, want.label, s.object.Labels[api.LabelNode], "%+v: only an agent of Lateen needs it", fleet)
	}
	require.Equal(t, transfer.Accepted, s.state().Phase)
	s.Agent.Fleet = coordinatorFleet{}
	delete(s.object.Labels, api.LabelNode)
	resource := corev1.Resource("podvolumebackups")
	for _, late := range []error{apierrors.NewConflict(resource, "b1", nil), apierrors.NewNotFound(resource, "b1")} {
		s.Client = refusing{late}
		require.Zero(t, s.step(t), "its event is on its way")
	}
	settled, foreign, unassigned := newBackup(), newForeign("InProgress"), newDownload("")
	settled.object.Spec.Node, foreign.object.Status.Node, unassigned.object.Status.Node = "n2", "n2", "n2"
	settled.object.Status.Phase = velerov1.PodVolumeBackupPhaseCompleted
	require.Zero(t, settled.step(t)+foreign.step(t)+unassigned.step(t))
	require.Empty(t, settled.object.Labels[api.LabelNode]+foreign.object.Labels[api.LabelNode]+unassigned.object.Labels[api.LabelNode])
}

func TestARejectedAcceptanceGivesThePlaceBackAndIsTriedAgain(t *testing.T) {
	resource := corev1.Resource("podvolumebackups")
	f := newFixture(t, fault{call: "patch podvolumebackups", ordinal: 1, err: apierrors.NewForbidden(resource, "b1", errors.New("no rights"))})
	f.Preparing = capacity.FixedPreparation(1)
	f.stepFails(t, "no rights")
	require.True(t, free(f.Preparing))
	f.fault.ordinal, f.fault.err = 2, apierrors.NewConflict(resource, "b1", errors.New("rejected by a webhook"))
	require.Positive(t, f.step(t), "no event follows: nothing was written")
}

// A mover that works needs no place in the queue. One that should work for long needs none on its node.
func TestATransferHoldsAPlaceUntilItsMoverEnds(t *testing.T) {
	for _, test := range []struct {
		phase         transfer.Phase
		node          string
		late          time.Duration
		paced, queued bool // holds a place
	}{
		{phase: transfer.New, node: testNode},
		{phase: transfer.Accepted, node: testNode, paced: true, queued: true},
		{phase: transfer.Accepted, node: testNode, late: time.Second, queued: true},
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
			s.clock.Step(s.Limits.PlaceTimeout - time.Second + test.late)
			s.TrackCapacity(s.object)
			require.Equal(t, !held, free(places), "%+v", test)
			s.ReleaseCapacity(s.object.UID)
			require.True(t, free(places), "it is deleted: %+v", test)
		}
	}
	unacceptable := newDownload("")
	unacceptable.object.Status.Node = testNode
	for _, s := range []*single[*velerov2alpha1.DataDownload]{newForeign("Accepted"), unacceptable} {
		s.Preparing.SetLimits(capacity.Limits{Cluster: 1})
		s.TrackCapacity(s.object)
		s.step(t)
		require.True(t, free(s.Preparing), "no agent of Lateen accepts it")
	}
}

func TestOnlyTheStartOfARestoreWaitsForThatOfAnotherOfItsPod(t *testing.T) {
	restore, backup, pod := newRestore(), newWorking(), types.NamespacedName{Namespace: "app", Name: "db"}
	restore.pods["app/db"], backup.object.Status.Phase = initializing(), velerov1.PodVolumeBackupPhasePrepared
	restore.starting.Store(pod, true)
	backup.starting.Store(pod, true)
	restore.step(t)
	backup.step(t)
	require.Equal(t, []transfer.Phase{transfer.Accepted, transfer.InProgress}, []transfer.Phase{restore.state().Phase, backup.state().Phase})
	require.Equal(t, 1, backup.NodeSlots.On(testNode).InUse())
}

func TestARestoreWatchesItsClaimsWhileItsVolumeIsRebound(t *testing.T) {
	s := newLateDelivery(t)
	request := s.newRequest(testKey, s.object)
	request.observed.OwnsMover, s.Agent.Fleet = true, followerFleet{}
	s.reserve(request)
	require.Equal(t, types.NamespacedName{Namespace: "app", Name: "restored"}, s.target.watched)
	require.NotZero(t, s.restored.watched)
	request.state.MoverSucceededAt = time.Time{}
	s.reserve(request)
	require.Zero(t, s.restored.watched, "its mover works")
	s.Agent.Fleet = coordinatorFleet{}
	s.local.update(testKey, func(kept *entry) { kept.rebindAt = s.clock.Now().Add(-s.Limits.RebindGrace) })
	require.Zero(t, s.step(t), "the event of its failure comes first")
}

func TestAMoverThatDoesNotRunGivesItsPlaceToTheNext(t *testing.T) {
	s := newPaced()
	s.Preparing.Release("another")
	s.becomes(t, transfer.Accepted)
	another, next := capacity.Transfer{UID: "next", Home: testNode, Created: s.clock.Now()}, 0
	require.False(t, s.Preparing.TryAcquire(another, func() { next++ }))
	s.step(t)
	created, err := s.kube.CoreV1().Pods("velero").Get(t.Context(), "b1", metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, "PodVolumeBackup", created.OwnerReferences[0].Kind)
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

func TestAnUnconfirmedStartKeepsItsSlotUntilTheCacheShowsIt(t *testing.T) {
	s := newFixture(t, fault{call: "patch podvolumebackups", ordinal: 3, err: errors.New("timeout"), committed: true})
	s.prepare(t)
	late := s.object.DeepCopy()
	s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return late.DeepCopy(), true }
	s.stepFails(t, "timeout") // the write may have succeeded
	require.Equal(t, velerov1.PodVolumeBackupPhaseInProgress, s.object.Status.Phase)
	s.step(t) // it is a conflict with itself
	require.Equal(t, 4, s.calls["patch podvolumebackups"])
	require.Equal(t, 1, s.NodeSlots.On(testNode).InUse(), "another one could start beside it")
	s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return s.object.DeepCopy(), true }
	s.run(t)
	require.Zero(t, s.NodeSlots.On(testNode).InUse())
}

func TestARejectionIsReportedOncePerReason(t *testing.T) {
	refusal := func(why string) error { return apierrors.NewForbidden(corev1.Resource("pods"), "b1", errors.New(why)) }
	s := newFixture(t, fault{})
	s.step(t)
	require.Empty(t, s.events.Events, "the resource says that it is accepted")
	for i, err := range []error{
		refusal("exceeded quota: a"), refusal("exceeded quota: a"), errors.New("connection refused"), refusal("exceeded quota: b"),
		apierrors.NewInternalError(errors.New("failed calling webhook")), apierrors.NewTooManyRequestsError("busy"), apierrors.NewConflict(schema.GroupResource{Resource: "resourcequotas"}, "a", errors.New("in use")),
	} {
		s.fault = fault{call: "create pods", ordinal: i + 1, err: err}
		s.stepFails(t, "create mover pod b1: ")
	}
	reported := s.sent()
	require.Len(t, reported, 3, "%q", reported)
	require.Regexp(t, "^Warning MoverCreateFailed .*exceeded quota: a", reported[0])
	require.Regexp(t, "^Warning MoverCreateFailed .*exceeded quota: b", reported[1])
	require.Regexp(t, "^Warning MoverCreateFailed .*failed calling webhook", reported[2])
	s.clock.Step(s.Limits.PrepareTimeout)
	s.steps(t, 1)
	require.Contains(t, s.state().Message, "in use", "the last answer")
}
