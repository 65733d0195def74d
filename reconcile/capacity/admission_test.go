package capacity

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

const testTimeout = time.Minute

// recordedAdmission is an Admission that records its enqueue calls.
type recordedAdmission struct {
	*Admission
	recorder
}

func newRecordedAdmission(limit, perNode int) *recordedAdmission {
	return &recordedAdmission{Admission: NewAdmission(limit, perNode, testTimeout, clock.RealClock{})}
}

// newEntry returns a waiting transfer. A UID that begins with r is a restore.
func newEntry(uid types.UID, age int, node string) Entry {
	return Entry{UID: uid, Key: "kind/velero/" + string(uid), Version: "1", Created: created(age), Restore: uid[0] == 'r', Node: node, Phase: Waiting}
}

// observeAll observes waiting transfers without a node, oldest first.
func (r *recordedAdmission) observeAll(uids ...types.UID) {
	for age, uid := range uids {
		r.Observe(newEntry(uid, age, ""))
	}
}

func (r *recordedAdmission) tryAdmit(uid types.UID) bool {
	return r.TryAdmit(uid, r.enqueue(uid))
}

// takeEnqueued returns the transfers enqueued since its last call.
func (r *recordedAdmission) takeEnqueued() []types.UID {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	enqueued := r.enqueued
	r.enqueued = nil
	return enqueued
}

// admissibleUIDs returns the admissible transfers and the number of known ones.
func (r *recordedAdmission) admissibleUIDs() (admissible []types.UID, known int) {
	r.lock.Lock()
	defer r.lock.Unlock()
	return uidsOf(r.admissible), len(r.known)
}

// numbered returns the UIDs of that many backups.
func numbered(count int) []types.UID {
	var uids []types.UID
	for i := range count {
		uids = append(uids, types.UID(fmt.Sprintf("b%04d", i)))
	}
	return uids
}

// letPass advances the time in a bubble and runs everything that is due before its end.
func letPass(d time.Duration) {
	<-time.NewTimer(d).C
	synctest.Wait()
}

func TestATimerThatFiresEarlyIsSetAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(1, 0)
		q.observeAll("lost", "b1")
		require.False(t, q.tryAdmit("b1"))
		q.timer.Stop()
		q.skipExpired()
		require.Empty(t, q.takeEnqueued())
		letPass(testTimeout)
		require.Equal(t, []types.UID{"b1"}, q.takeEnqueued())
	})
}

func TestALaggingCacheReleasesNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(1, 0)
		q.observeAll("a", "b")
		require.True(t, q.tryAdmit("a"))
		require.False(t, q.tryAdmit("b"))
		written := newEntry("a", 0, "")
		written.Version, written.Phase = "10", Admitted
		q.Observe(written)
		elsewhere := written
		elsewhere.Created = written.Created.UTC()
		require.True(t, same(written, elsewhere), "the same time in another zone")
		stale := newEntry("a", 0, "")
		stale.Version = "9"
		q.Observe(stale)
		require.Empty(t, q.takeEnqueued())
		written.Version, written.Phase = "11", Uncounted
		q.Observe(written)
		require.Equal(t, []types.UID{"b"}, q.takeEnqueued())
	})
}

func TestARecreatedResourceReplacesTheOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(1, 1)
		old := newEntry("old", 0, "n1")
		old.Phase = Admitted
		q.Observe(old)
		recreated := newEntry("new", 1, "n1")
		recreated.Key = old.Key
		require.False(t, q.tryAdmit("new"), "it is requested before it is observed")
		q.Observe(recreated)
		require.Equal(t, []types.UID{"new"}, q.takeEnqueued())
		require.True(t, q.tryAdmit("new"))
		q.Forget("old")
		q.Forget("new")
		require.Empty(t, q.known)
		require.Empty(t, q.uids)
		require.Empty(t, q.nodes, "nothing is kept of deleted transfers")
		require.True(t, q.cluster.empty())
	})
}

func TestWithoutALimitEveryTransferIsAdmitted(t *testing.T) {
	q := newRecordedAdmission(0, 1)
	for _, uid := range numbered(100) {
		q.Observe(newEntry(uid, 0, "n1"))
		require.True(t, q.tryAdmit(uid))
	}
	require.True(t, q.tryAdmit("unknown"))
	require.Empty(t, q.known, "nothing is kept")
}

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
