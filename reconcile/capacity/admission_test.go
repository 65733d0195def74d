package capacity

import (
	"fmt"
	"sync"
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
	enqueuedLock sync.Mutex
	enqueued     []types.UID
}

func newRecordedAdmission(limit, perNode int) *recordedAdmission {
	return &recordedAdmission{Admission: NewAdmission(limit, perNode, testTimeout, clock.RealClock{})}
}

// newEntry returns a waiting transfer. A UID that begins with r is a restore.
func newEntry(uid types.UID, age int, node string) Entry {
	return Entry{UID: uid, Key: "kind/velero/" + string(uid), Version: "1", Created: created(age), Restore: uid[0] == 'r', Node: node, Phase: Waiting}
}

// observeAll observes waiting transfers without a node, oldest first.
func (q *recordedAdmission) observeAll(uids ...types.UID) {
	for age, uid := range uids {
		q.Observe(newEntry(uid, age, ""))
	}
}

// observePhase observes another phase of a transfer.
func (q *recordedAdmission) observePhase(uid types.UID, phase AdmissionPhase) {
	q.lock.Lock()
	next := q.known[uid].Entry
	q.lock.Unlock()
	next.Phase = phase
	q.Observe(next)
}

func (q *recordedAdmission) tryAdmit(uid types.UID) bool {
	return q.TryAdmit(uid, func() {
		q.enqueuedLock.Lock()
		defer q.enqueuedLock.Unlock()
		q.enqueued = append(q.enqueued, uid)
	})
}

// takeEnqueued returns the transfers enqueued since its last call.
func (q *recordedAdmission) takeEnqueued() []types.UID {
	q.enqueuedLock.Lock()
	defer q.enqueuedLock.Unlock()
	enqueued := q.enqueued
	q.enqueued = nil
	return enqueued
}

// admissibleUIDs returns the admissible transfers and the number of known ones.
func (q *recordedAdmission) admissibleUIDs() (admissible []types.UID, known int) {
	q.lock.Lock()
	defer q.lock.Unlock()
	return uidsOf(q.admissible), len(q.known)
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

func TestTheAdmitTimeoutCountsOnlyWhileAdmissible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(1, 0)
		q.observeAll("working", "lost", "b1")
		q.observePhase("working", Admitted)
		require.False(t, q.tryAdmit("b1"))
		letPass(24 * time.Hour)
		q.observePhase("working", Uncounted)
		require.Empty(t, q.takeEnqueued(), "the timeout does not count while no place is free")
		letPass(testTimeout / 2)
		q.observePhase("working", Admitted)
		letPass(testTimeout)
		q.observePhase("working", Uncounted)
		letPass(testTimeout - 1)
		require.Empty(t, q.takeEnqueued(), "it restarts when a place is free again")
		letPass(1)
		require.Equal(t, []types.UID{"b1"}, q.takeEnqueued())
	})
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

func TestASkippedTransferIsAdmittedOnRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(1, 0)
		q.observeAll("late", "b1", "b2")
		letPass(testTimeout)
		require.True(t, q.tryAdmit("b1"))
		q.observePhase("b1", Admitted)
		require.False(t, q.tryAdmit("late"), "it is skipped")
		require.False(t, q.tryAdmit("b2"))
		q.observePhase("b1", Uncounted)
		require.Equal(t, []types.UID{"late"}, q.takeEnqueued(), "it keeps its position in the queue")
		require.True(t, q.tryAdmit("late"))
		q.Release("late")
		require.Equal(t, []types.UID{"b2"}, q.takeEnqueued(), "it reserves nothing without a request")
		require.True(t, q.tryAdmit("b2"))
	})
}

func TestAnAdmissionReservesItsPlaceAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(1, 0)
		q.observeAll("b1")
		require.True(t, q.tryAdmit("b1"))
		require.True(t, q.tryAdmit("b1"), "its reservation holds for repeated requests")
		q.Observe(newEntry("b0", -1, ""))
		require.False(t, q.tryAdmit("b0"), "an older one arrives before the cache has the write of b1")
		changed := newEntry("b1", 0, "")
		changed.Version = "2"
		q.Observe(changed)
		require.Empty(t, q.takeEnqueued(), "a write of another client is not that of b1")
		q.observePhase("b1", Admitted)
		letPass(10 * testTimeout)
		require.Empty(t, q.takeEnqueued(), "an admitted transfer has no timeout")
		q.observePhase("b1", Uncounted)
		require.Equal(t, []types.UID{"b0"}, q.takeEnqueued())
	})
}

func TestAFailedWriteReleasesItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(1, 0)
		q.observeAll("b1", "b2")
		require.False(t, q.tryAdmit("b2"))
		for range 6 { // every ten seconds for a minute, the length of the timeout
			require.True(t, q.tryAdmit("b1"))
			q.Release("b1")
			letPass(testTimeout / 6)
		}
		require.Equal(t, []types.UID{"b2"}, q.takeEnqueued(), "it may fail each time")
		require.True(t, q.tryAdmit("b2"))
		require.False(t, q.tryAdmit("b1"))
	})
}

func TestAnUnusedPlaceExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(1, 0)
		q.observeAll("b1", "b2")
		require.True(t, q.tryAdmit("b1"))
		require.False(t, q.tryAdmit("b2"))
		letPass(testTimeout)
		require.Equal(t, []types.UID{"b2"}, q.takeEnqueued())
	})
}

func TestARefusedTransferIsEnqueuedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(2, 0)
		q.observeAll("a", "b", "c", "d")
		require.True(t, q.tryAdmit("a"))
		require.True(t, q.tryAdmit("b"))
		require.False(t, q.tryAdmit("c"))
		require.False(t, q.tryAdmit("c"))
		require.False(t, q.tryAdmit("d"))
		q.Forget("a")
		require.Equal(t, []types.UID{"c"}, q.takeEnqueued())
		q.Observe(newEntry("e", 9, ""))
		q.Observe(newEntry("e", 9, ""))
		require.Empty(t, q.takeEnqueued(), "nothing has changed for the waiting")
		q.Forget("b")
		require.Equal(t, []types.UID{"d"}, q.takeEnqueued(), "c is enqueued and has not requested yet; there is a place for both")
		require.True(t, q.tryAdmit("d"))
		require.True(t, q.tryAdmit("c"))
		require.False(t, q.tryAdmit("e"))
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
		stale := newEntry("a", 0, "")
		stale.Version = "9"
		q.Observe(stale)
		require.Empty(t, q.takeEnqueued())
		written.Version, written.Phase = "11", Uncounted
		q.Observe(written)
		require.Equal(t, []types.UID{"b"}, q.takeEnqueued())
	})
}

func TestRestartedMoversMayExceedTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(2, 0)
		q.observeAll("a", "b", "c", "d")
		for _, uid := range []types.UID{"a", "b", "c"} {
			q.observePhase(uid, Admitted) // restarted movers are not held back
			require.True(t, q.tryAdmit(uid))
		}
		require.False(t, q.tryAdmit("d"))
		q.observePhase("a", Uncounted)
		require.Empty(t, q.takeEnqueued())
		q.observePhase("b", Uncounted)
		require.Equal(t, []types.UID{"d"}, q.takeEnqueued())
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
		q.Release(uid)
		q.Forget(uid)
	}
	require.True(t, q.tryAdmit("unknown"))
	require.Empty(t, q.known, "nothing is kept")
}

func TestATransferWaitsForItsNodeOnceItIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(4, 1)
		first := newEntry("a", 0, "n1")
		first.Phase = Admitted
		q.Observe(first)
		q.Observe(newEntry("r", 1, ""))
		q.Observe(newEntry("r", 1, "n1"))
		require.False(t, q.tryAdmit("r"))
		q.Observe(newEntry("r", 1, "n2"))
		require.Equal(t, []types.UID{"r"}, q.takeEnqueued())
	})
}
