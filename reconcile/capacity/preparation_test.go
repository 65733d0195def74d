package capacity

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// recordedPreparation is a Preparation that records its enqueue calls.
type recordedPreparation struct {
	*Preparation
	recorder
}

func (r *recordedPreparation) tryAcquire(nodeBound bool, uid types.UID, age int) bool {
	return r.TryAcquire(nodeBound, uid, created(age), r.enqueue(uid))
}

func TestTransfersWithoutANodeHavePlacesOfTheirOwn(t *testing.T) {
	p := &recordedPreparation{Preparation: FixedPreparation(1)}
	require.True(t, p.tryAcquire(true, "backup", 1))
	require.True(t, p.tryAcquire(false, "upload", 2))
	require.False(t, p.tryAcquire(true, "another backup", 3))
	require.False(t, p.tryAcquire(false, "another upload", 4))
	p.Release("upload")
	require.Equal(t, []types.UID{"another upload"}, p.enqueued)
}

func TestANodePreparesTwoRoundsOfItsSlotsAhead(t *testing.T) {
	for slots, want := range map[int]int{1: 4, 4: 10, 16: 34} {
		require.Equal(t, want, Ahead(slots))
		p := &recordedPreparation{Preparation: NewPreparation(slots, 1)}
		given := 0
		for age, uid := range numbered(100) {
			if p.tryAcquire(true, uid, age) {
				given++
			}
		}
		require.Equal(t, want, given)
	}
}

func TestPlacesWithoutANodeGrowWithTheCluster(t *testing.T) {
	p := &recordedPreparation{Preparation: NewPreparation(1, 4)}
	given := func() (count int) {
		for age, uid := range numbered(200) {
			if p.tryAcquire(false, uid, age) {
				count++
			}
		}
		return count
	}
	require.Equal(t, minFleet, given(), "however few nodes there are")
	p.SetNodes(10)
	require.Len(t, p.enqueued, 80, "those that have a place now")
	require.Equal(t, 100, given())
	p.SetNodes(3)
	p.enqueued = nil
	p.Release("b0000")
	require.Empty(t, p.enqueued, "70 places are taken too many")
}

func TestABusyNodeHoldsNoPlacesOfOtherNodes(t *testing.T) {
	p := &recordedPreparation{Preparation: NewPreparation(1, 4)} // 20 places; a node prepares 10 ahead
	ready := func(uid types.UID, age int) {
		p.CountReady(false, "busy", uid, created(age), p.enqueue(uid))
	}
	waiting := numbered(30)
	for age, uid := range waiting {
		p.Count(false, uid)
		ready(uid, age)
	}
	require.Equal(t, 10, p.fleet.InUse())
	require.True(t, p.tryAcquire(false, "for another node", 40))
	p.Release("for another node")
	p.enqueued = nil
	for _, uid := range waiting[:10] {
		p.Release(uid) // they start
	}
	require.Subset(t, p.enqueued, waiting[10:20], "they are counted now")
	for age, uid := range waiting[10:] {
		ready(uid, 10+age)
	}
	require.Equal(t, 10, p.fleet.InUse())
	for _, uid := range waiting[10:] {
		p.Count(false, uid) // its mover was lost, and the next one may run elsewhere
	}
	require.Equal(t, 20, p.fleet.InUse())
	for _, uid := range waiting {
		p.Release(uid)
	}
	require.Zero(t, p.fleet.InUse()+p.ready.On("busy").InUse())
}

func TestPrepareQueueLengthReplacesThePace(t *testing.T) {
	p := &recordedPreparation{Preparation: Unpaced()}
	p.SetNodes(1)
	for age, uid := range numbered(1000) {
		require.True(t, p.tryAcquire(age%2 == 0, uid, age))
	}
}

func TestPlacesFollowChangedSlots(t *testing.T) {
	p := &recordedPreparation{Preparation: NewPreparation(1, 1)}
	for age, uid := range numbered(6) {
		require.Equal(t, age < Ahead(1), p.tryAcquire(true, uid, age))
	}
	p.SetNodes(30)
	p.SetSlots(2, 2)
	require.Len(t, p.enqueued, 2)
	require.Equal(t, FleetAhead(30, 2), p.fleet.Limit())
	fixed := FixedPreparation(3)
	fixed.SetSlots(9, 9)
	require.Equal(t, 3, fixed.node.Limit())
}
