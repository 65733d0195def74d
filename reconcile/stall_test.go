package reconcile

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// inactivity returns the value of the metric.
func (s *single[T]) inactivity() time.Duration {
	var longest float64
	for _, one := range s.Count([]T{s.object}) {
		longest = max(longest, one.Silence)
	}
	return time.Duration(longest * float64(time.Second))
}

func TestAMoverThatReportsNothingForTooLongIsReplaced(t *testing.T) {
	s := newWorking()
	timeout, mover := s.Limits.StallTimeout, s.pods[testKey]
	require.Equal(t, timeout, s.step(t))
	s.clock.Step(timeout - time.Second)
	require.Equal(t, timeout-time.Second, s.inactivity())
	require.Equal(t, time.Second, s.step(t))
	s.clock.Step(time.Second)
	s.step(t)
	require.True(t, s.kube.Actions()[0].Matches("delete", "pods"))
	require.Equal(t, transfer.InProgress, s.state().Phase, "its mover works")
	require.Zero(t, s.state().Restarts)
	delete(s.pods, testKey)
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	require.Equal(t, 1, s.state().Restarts)
	require.Equal(t, "mover stalled: no byte moved and no Event sent within 2h0m0s", s.state().Message)
	require.Zero(t, s.inactivity())
	s.object.Status.Phase = velerov1.PodVolumeBackupPhaseInProgress // with the next mover
	s.object.Status.StartTimestamp = &metav1.Time{Time: s.clock.Now()}
	s.pods[testKey] = mover
	mover.Annotations = map[string]string{api.AnnotationAttempt: "1"}
	require.Equal(t, timeout, s.step(t), "the time of the first one does not count")
}

func TestAMoverThatReportsAnythingIsNotStalled(t *testing.T) {
	s := newWorking()
	timeout := s.Limits.StallTimeout
	s.step(t)
	long := s.clock.Now().Add(-24 * time.Hour) // by the wrong clock of its node
	for i, sent := range []struct{ reason, message string }{
		{eventStarted, "Data path for b1 started"},
		{eventProgress, `{"totalBytes":10,"doneBytes":1}`},
		{eventProgress, `{"totalBytes":10,"doneBytes":2}`},
		{eventProgress, `{"totalBytes":10,"doneBytes":2}`}, // an Event of its own: the mover is alive
	} {
		s.clock.Step(timeout - time.Second)
		if sent.reason == eventStarted {
			s.reports[sent.reason] = report{sent.message, s.clock.Now()}
		} else {
			s.reports[sent.reason] = report{sent.message, long.Add(time.Duration(i) * time.Second)}
		}
		require.Equal(t, timeout, s.step(t))
		require.Equal(t, transfer.InProgress, s.state().Phase)
		require.Zero(t, s.inactivity())
	}
}
