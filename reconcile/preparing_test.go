package reconcile

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// newPaced returns a backup, and the only place of its node, which another one has.
func newPaced() *single[*velerov1.PodVolumeBackup] {
	s := newBackup()
	s.live["app/db"], s.pods["app/db"] = sourcePod(), sourcePod()
	s.Preparing = capacity.FixedPreparation(1)
	s.Preparing.Count(true, "another")
	return s
}

// free reports whether the place is free, without taking it.
func free(p *capacity.Preparation) bool {
	const probe = types.UID("probe")
	defer p.Release(probe)
	return p.TryAcquire(true, probe, metav1.Now().Time, func() {})
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

func TestATransferThatIsNotEligibleAnyMoreLeavesTheQueueForAPlace(t *testing.T) {
	s := newPaced()
	s.step(t)
	younger := s.state().CreatedAt.Add(1)
	s.Preparing.Release("another")
	require.False(t, s.Preparing.TryAcquire(true, "younger", younger, func() {}), "the older one is next")
	s.object.Spec.Cancel = true
	s.reserve(s.observed(t))
	require.True(t, s.Preparing.TryAcquire(true, "younger", younger, func() {}))
}

func TestARejectedAcceptanceGivesThePlaceBack(t *testing.T) {
	refused := apierrors.NewForbidden(corev1.Resource("podvolumebackups"), "b1", errors.New("no rights"))
	f := newFixture(t, fault{call: "patch podvolumebackups", ordinal: 1, err: refused})
	f.Preparing = capacity.FixedPreparation(1)
	_, err := f.Reconcile(t.Context(), testKey)
	require.ErrorContains(t, err, "no rights")
	require.True(t, free(f.Preparing))
}

func TestWhatIsPreparedHoldsAPlaceOfItsNodeUntilItStarts(t *testing.T) {
	for _, test := range []struct {
		phase transfer.Phase
		node  string
		held  bool
	}{
		{transfer.New, testNode, false}, {transfer.Accepted, testNode, true}, {transfer.Prepared, testNode, true},
		{transfer.InProgress, testNode, false}, {transfer.Failed, testNode, false}, {transfer.Accepted, "n2", false},
	} {
		t.Run(string(test.phase)+" on "+test.node, func(t *testing.T) {
			s := newPaced()
			s.Preparing.Release("another")
			s.object.Spec.Node = test.node
			state := s.state()
			state.Phase, state.Exposer, state.AcceptedAt = test.phase, test.node, s.clock.Now()
			s.Kind.Set(s.object, state)
			s.TrackCapacity(s.object)
			require.Equal(t, !test.held, free(s.Preparing))
			s.ReleaseCapacity(s.object.UID)
			require.True(t, free(s.Preparing), "it is deleted")
		})
	}
}

func TestAMoverThatDoesNotRunGivesItsPlaceToTheNext(t *testing.T) {
	s := newPaced()
	s.Preparing.Release("another")
	s.step(t)
	require.Equal(t, transfer.Accepted, s.state().Phase)
	next := 0
	require.False(t, s.Preparing.TryAcquire(true, "next", s.clock.Now(), func() { next++ }))
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
	require.True(t, s.Preparing.TryAcquire(true, "next", s.clock.Now(), func() {}), "an event of it changes nothing")
	require.Equal(t, transfer.Accepted, s.state().Phase, "it can still start")
}
