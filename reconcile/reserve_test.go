package reconcile

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/capacity"
)

// observed observes a resource and reserves nothing.
func (s *single[T]) observed(t *testing.T) *request[T] {
	t.Helper()
	request := s.newRequest(testKey, s.object)
	require.NoError(t, s.observe(t.Context(), request))
	require.Empty(t, s.events.Events)
	require.Zero(t, s.NodeSlots.Own().InUse())
	require.Empty(t, s.watched)
	require.False(t, s.moverWatched)
	require.Zero(t, s.target.watched)
	return request
}

func TestObservingReservesNothing(t *testing.T) {
	t.Run("a slot of a mover that works", func(t *testing.T) {
		s := newWorking()
		s.reserve(s.observed(t))
		require.Equal(t, 1, s.NodeSlots.Own().InUse())
		require.True(t, s.moverWatched)
		s.object.Status.Phase = velerov1.PodVolumeBackupPhaseFailed
		s.step(t)
		require.Zero(t, s.NodeSlots.Own().InUse())
		require.False(t, s.moverWatched)
	})
	t.Run("a slot of a mover that is ready", func(t *testing.T) {
		s := newWorking()
		s.object.Status.Phase = "Prepared"
		request := s.observed(t)
		require.True(t, s.NodeSlots.TryAcquire(testNode, "another", s.clock.Now(), func() {}), "nothing is queued before it")
		s.reserve(request)
		require.False(t, request.observed.HasSlot)
	})
	t.Run("admission", func(t *testing.T) {
		s := newDownload("")
		s.Admission = capacity.NewAdmission(1, 1, s.Limits.PrepareTimeout, s.clock)
		s.TrackCapacity(s.object)
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
	t.Run("the watch of a target pod", func(t *testing.T) {
		s := newRestore()
		s.live["app/db"] = targetOn("")
		s.observed(t)
		s.clock.Step(s.Limits.FollowTarget)
		s.reserve(s.observed(t))
		require.Equal(t, "app/db", s.watched.String())
	})
}

func TestAFailedObservationKeepsTheSlotOnlyWhileTheMoverMayWork(t *testing.T) {
	for phase, slots := range map[string]int{"InProgress": 1, "Prepared": 1, "Failed": 0} {
		t.Run(phase, func(t *testing.T) {
			s := newWorking()
			s.step(t)
			require.Equal(t, 1, s.NodeSlots.Own().InUse())
			s.object.Status.Phase, s.failing = velerov1.PodVolumeBackupPhase(phase), errors.New("no answer")
			delete(s.pods, testKey)
			delete(s.pods, "app/db")
			s.object.Finalizers = []string{api.FinalizerPodVolume}
			s.kube.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, s.failing })
			_, err := s.Reconcile(t.Context(), testKey)
			require.Error(t, err)
			require.Equal(t, slots, s.NodeSlots.Own().InUse())
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
