package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

func TestAMoverThatReportsAnythingIsNotStalled(t *testing.T) {
	s := newWorking()
	timeout, begun := time.Second, s.clock.Now()
	s.Limits.StallTimeout = timeout
	require.Equal(t, timeout, s.step(t))
	for i, change := range []func(){
		func() { s.says(eventStarted, "Data path for b1 started", begun) },
		func() { s.object.Status.Progress.BytesDone = 1 },                                           // written by the coordinator
		func() { s.says(eventProgress, `{"totalBytes":10,"doneBytes":1}`, begun.Add(time.Second)) }, // no byte more, but it is alive
	} {
		s.clock.Step(timeout) // the clock of the mover's node does not go on
		change()
		require.Equal(t, timeout, s.step(t), "after change %d", i)
		require.Equal(t, transfer.InProgress, s.state().Phase)
		require.Zero(t, s.inactivity())
	}
	require.Equal(t, 2, s.lists, "none while the progress changes")
	s.says(EventRestarted, "", begun.Add(time.Hour)) // of an agent
	s.clock.Step(timeout)
	s.unlisted, s.Limits.StallTimeout = errors.New("no answer"), 0
	require.Zero(t, s.step(t), "there is no limit")
	s.Limits.StallTimeout = timeout
	s.stepFails(t, "no answer")
	s.unlisted = nil
	s.steps(t, 2)
	require.Len(t, s.kube.Actions(), 2, "its log is read, and its pod is deleted once")
	require.True(t, s.kube.Actions()[1].Matches("delete", "pods"))
}

// The clock of the first mover's node may be ahead of that of the next.
func TestTheTimesOfAnEarlierMoverDoNotHideTheReportsOfTheNext(t *testing.T) {
	s := newWorking()
	s.says(eventStarted, "", s.clock.Now().Add(24*time.Hour))
	s.step(t)
	s.clock.Step(s.Limits.StallTimeout)
	s.step(t)
	s.object.Status.StartTimestamp, s.reports = &metav1.Time{Time: s.clock.Now()}, nil // of the next
	s.says(eventStarted, "", s.clock.Now())
	s.step(t)
	s.clock.Step(s.Limits.StallTimeout)
	require.Equal(t, s.Limits.StallTimeout, s.step(t))
	require.Empty(t, s.kube.Actions())
}

func TestAnEventThatIsNoReportOfTheMoverDoesNotCount(t *testing.T) {
	for sentence, change := range map[string]func(event *corev1.Event){
		"of an agent":              func(event *corev1.Event) { event.Reason = EventRestarted },
		"of an earlier mover":      func(event *corev1.Event) { event.CreationTimestamp.Time = event.CreationTimestamp.Add(-time.Second) },
		"of a mover elsewhere":     func(event *corev1.Event) { event.Source.Host = "n2" },
		"of before its start":      func(event *corev1.Event) { event.LastTimestamp.Time = event.LastTimestamp.Add(-time.Second) },
		"started":                  func(*corev1.Event) {},
		"started over an hour ago": func(event *corev1.Event) { event.Reason, event.Source.Host = eventProgress, testNode }, // that Event is deleted
	} {
		s, counts := newWorking(), strings.HasPrefix(sentence, "started")
		s.pods[testKey].CreationTimestamp = metav1.NewTime(s.clock.Now())
		s.says(eventStarted, "", s.clock.Now())
		change(s.reports[0])
		s.object.Status.Phase, s.object.Spec.Cancel = velerov1.PodVolumeBackupPhaseCanceling, true
		require.Equal(t, counts, s.observed(t).observed.Started, sentence)
		s.step(t)
		require.Equal(t, !counts, len(s.kube.Actions()) > 0, "one that has not started may never see the cancel, and is deleted at once")
	}
}

// newCanceledUnlisted returns a backup whose mover is canceled, after the first list of its Events got no answer.
func newCanceledUnlisted(t *testing.T) *single[*velerov1.PodVolumeBackup] {
	t.Helper()
	s := newWorking()
	s.object.Status.Phase, s.object.Spec.Cancel = velerov1.PodVolumeBackupPhaseCanceling, true
	s.unlisted = errors.New("no answer")
	s.stepFails(t, "no answer")
	require.Empty(t, s.kube.Actions(), "it may have started")
	return s
}

func TestACancelListsTheEventsOfItsMoverOnceAndDoesNotWaitForThemForEver(t *testing.T) {
	s := newCanceledUnlisted(t)
	s.unlisted, s.object.Spec.Cancel, s.object.DeletionTimestamp = nil, false, &metav1.Time{Time: s.clock.Now()} // a deletion cancels, too
	s.says(eventStarted, "", s.clock.Now())
	require.Equal(t, 2*s.Limits.CancelGrace, s.step(t)+s.step(t))
	require.Equal(t, 2, s.lists)
	s = newCanceledUnlisted(t)
	s.object.Status.Phase, s.object.Spec.Cancel = velerov1.PodVolumeBackupPhaseInProgress, false
	s.step(t) // the cancel is withdrawn
	s.clock.Step(s.Limits.CancelGrace)
	s.object.Status.Phase, s.object.Spec.Cancel = velerov1.PodVolumeBackupPhaseCanceling, true
	s.stepFails(t, "no answer")
	s.clock.Step(s.Limits.CancelGrace)
	s.step(t)
	require.True(t, s.kube.Actions()[1].Matches("delete", "pods"))
}

func TestAFailedMoverKeepsItsLastProgressAndItsLog(t *testing.T) {
	for done, unlisted := range map[int64]error{3: nil, 0: errors.New("no answer")} {
		for _, phase := range []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded} { // it succeeded without a result
			s, logs := newWorking(), 0
			s.unlisted, s.MoverLog = unlisted, func(context.Context, string, []byte) { logs++ }
			s.Preparing.SetLimits(capacity.Limits{Cluster: 1})
			s.says(eventProgress, `{"totalBytes":10,"doneBytes":3}`, s.clock.Now())
			s.says(moverReasons+"Failed", `{"totalBytes":10,"doneBytes":4}`, s.clock.Now())
			s.pods[testKey].Status = corev1.PodStatus{Phase: phase, ContainerStatuses: ended(1, "")}
			s.step(t)
			require.True(t, free(s.Preparing), "before the event of the write")
			require.Equal(t, transfer.Failed, s.state().Phase, phase)
			require.Equal(t, done, s.state().Progress.Done, phase)
			s.step(t)
			require.Equal(t, 1, logs, phase)
		}
	}
}

// writeProgress writes the progress that the mover reported, with the rate limiter of a coordinator.
func (s *single[T]) writeProgress(t *testing.T, limiter flowcontrol.RateLimiter) (time.Duration, error) {
	t.Helper()
	return s.WriteProgress(t.Context(), testKey, func(about types.UID) []*corev1.Event {
		require.Equal(t, s.object.GetUID(), about)
		return s.reports
	}, limiter)
}

func TestTheLastProgressOfTheMoverIsWritten(t *testing.T) {
	s := newWorking()
	s.pods[testKey].CreationTimestamp = metav1.NewTime(s.clock.Now())
	s.says(eventProgress, `{"totalBytes":10,"doneBytes":3}`, s.clock.Now().Add(2*time.Second))
	s.says(eventProgress, `{"totalBytes":10,"doneBytes":2}`, s.clock.Now().Add(time.Second)) // the list has no order
	s.says(eventProgress, "no JSON", s.clock.Now().Add(time.Minute))
	s.says(eventProgress, `{"totalBytes":10,"doneBytes":9}`, s.clock.Now().Add(time.Minute))
	s.reports[3].Source.Host = "n2" // of a mover on a lost node
	require.True(t, mayBeFrom(&corev1.Pod{}, s.reports[3]), "the cache does not show the node of the mover yet")
	s.NodeSlots.ForceAcquire(testNode, "another") // it needs no slot of this agent
	left, err := s.writeProgress(t, flowcontrol.NewFakeNeverRateLimiter())
	require.NoError(t, err)
	require.Equal(t, s.Limits.FirstProgress, left)
	s.clock.Step(left)
	_, err = s.writeProgress(t, flowcontrol.NewFakeNeverRateLimiter())
	require.Error(t, err, "the limit of the cluster holds")
	s.Agent.Fleet = coordinatorFleet{veleros: testNode}
	_, err = s.writeProgress(t, flowcontrol.NewFakeAlwaysRateLimiter())
	require.NoError(t, err)
	require.Equal(t, "1", s.object.ResourceVersion, "an agent of Velero writes it")
	s.Agent.Fleet = coordinatorFleet{}
	for range 2 {
		left, err = s.writeProgress(t, flowcontrol.NewFakeAlwaysRateLimiter())
		require.NoError(t, err)
		require.Zero(t, left)
	}
	require.Equal(t, transfer.Progress{Total: 10, Done: 3}, s.state().Progress)
	require.Equal(t, "2", s.object.ResourceVersion, "written once")
}

func TestProgressOfAResourceThatChangedIsWrittenLater(t *testing.T) {
	s := newWorking()
	s.says(eventProgress, `{"totalBytes":10,"doneBytes":3}`, s.clock.Now())
	s.clock.Step(s.Limits.FirstProgress)
	cached := s.object.DeepCopy()
	s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return cached.DeepCopy(), true }
	s.object.ResourceVersion = "2"
	left, err := s.writeProgress(t, flowcontrol.NewFakeAlwaysRateLimiter())
	require.NoError(t, err)
	require.Equal(t, ConflictRequeue, left)
	s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return nil, false }
	left, err = s.writeProgress(t, flowcontrol.NewFakeAlwaysRateLimiter())
	require.NoError(t, err)
	require.Zero(t, left, "it is deleted")
	s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return s.object, true }
	s.Client = refusing{errors.New("refused")}
	_, err = s.writeProgress(t, flowcontrol.NewFakeAlwaysRateLimiter())
	require.ErrorContains(t, err, "refused")
}

// The resource ends and is labelled as done before the answer to a write of its progress is handled.
func TestALateAnswerCountsNoResourceThatHasEnded(t *testing.T) {
	s := newWorking()
	s.says(eventProgress, `{"totalBytes":10,"doneBytes":3}`, s.clock.Now())
	s.clock.Step(s.Limits.FirstProgress)
	s.Preparing = capacity.FixedPreparation(9)
	s.Preparing.SetLimits(capacity.Limits{Cluster: 1})
	s.Record = func(*velerov1.PodVolumeBackup) {
		s.ReleaseCapacity(s.object.UID)
		s.Cached = func(string) (*velerov1.PodVolumeBackup, bool) { return nil, false }
	}
	_, err := s.writeProgress(t, flowcontrol.NewFakeAlwaysRateLimiter())
	require.NoError(t, err)
	require.True(t, s.Preparing.TryAcquire(capacity.Transfer{UID: "another"}, func() {}))
}

// refusing refuses each patch.
type refusing struct{ err error }

func (r refusing) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*velerov1.PodVolumeBackup, error) {
	return nil, r.err
}
