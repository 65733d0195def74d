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

const testPatience = time.Minute

// queue is an Admission that records its enqueue calls.
type queue struct {
	*Admission
	heardLock sync.Mutex
	woken     []types.UID
}

func newQueue(limit, perNode int) *queue {
	return &queue{Admission: NewAdmission(limit, perNode, testPatience, clock.RealClock{})}
}

// newEntry returns a waiting transfer. A UID that begins with r is a restore.
func newEntry(uid types.UID, age int, node string) Entry {
	return Entry{UID: uid, Key: "kind/velero/" + string(uid), Version: "1", Created: created(age), Restore: uid[0] == 'r', Node: node, Phase: Waiting}
}

// noteAll observes waiting transfers without a node, oldest first.
func (q *queue) noteAll(uids ...types.UID) {
	for age, uid := range uids {
		q.Observe(newEntry(uid, age, ""))
	}
}

// becomes observes another phase of a transfer.
func (q *queue) becomes(uid types.UID, phase AdmissionPhase) {
	q.lock.Lock()
	next := q.known[uid].Entry
	q.lock.Unlock()
	next.Phase = phase
	q.Observe(next)
}

func (q *queue) ask(uid types.UID) bool {
	return q.TryAdmit(uid, func() {
		q.heardLock.Lock()
		defer q.heardLock.Unlock()
		q.woken = append(q.woken, uid)
	})
}

// heard returns the transfers enqueued since its last call.
func (q *queue) heard() []types.UID {
	q.heardLock.Lock()
	defer q.heardLock.Unlock()
	woken := q.woken
	q.woken = nil
	return woken
}

// may returns the admissible transfers and the number of known ones.
func (q *queue) may() (going []types.UID, known int) {
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

func TestPatienceIsWithThoseWhoCouldGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 0)
		q.noteAll("working", "lost", "b1")
		q.becomes("working", Admitted)
		require.False(t, q.ask("b1"))
		letPass(24 * time.Hour)
		q.becomes("working", Uncounted)
		require.Empty(t, q.heard(), "until now there was no place, which is no fault of the older one")
		letPass(testPatience / 2)
		q.becomes("working", Admitted)
		letPass(testPatience)
		q.becomes("working", Uncounted)
		letPass(testPatience - 1)
		require.Empty(t, q.heard(), "it counts from when there was a place again")
		letPass(1)
		require.Equal(t, []types.UID{"b1"}, q.heard())
	})
}

func TestWhoWasPassedOverGetsAPlaceWhenItIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 0)
		q.noteAll("late", "b1", "b2")
		letPass(testPatience)
		require.True(t, q.ask("b1"))
		q.becomes("b1", Admitted)
		require.False(t, q.ask("late"), "its claim is gone")
		require.False(t, q.ask("b2"))
		q.becomes("b1", Uncounted)
		require.Equal(t, []types.UID{"late"}, q.heard(), "but it keeps its age")
		require.True(t, q.ask("late"))
		q.Release("late")
		require.Equal(t, []types.UID{"b2"}, q.heard(), "and it holds nothing when it is not asked for")
		require.True(t, q.ask("b2"))
	})
}

func TestAPlaceIsTakenFromTheAnswerOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 0)
		q.noteAll("b1")
		require.True(t, q.ask("b1"))
		require.True(t, q.ask("b1"), "it is its own, however often it asks")
		q.Observe(newEntry("b0", -1, ""))
		require.False(t, q.ask("b0"), "an older one comes before the cache has the write of b1")
		changed := newEntry("b1", 0, "")
		changed.Version = "2"
		q.Observe(changed)
		require.Empty(t, q.heard(), "a change by somebody else is not that write")
		q.becomes("b1", Admitted)
		letPass(10 * testPatience)
		require.Empty(t, q.heard(), "who prepares may take as long as it needs")
		q.becomes("b1", Uncounted)
		require.Equal(t, []types.UID{"b0"}, q.heard())
	})
}

func TestAPlaceIsGivenBackWhenTheWriteFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 0)
		q.noteAll("b1", "b2")
		require.False(t, q.ask("b2"))
		for range 6 { // every ten seconds for a minute, the length of the timeout
			require.True(t, q.ask("b1"))
			q.Release("b1")
			letPass(testPatience / 6)
		}
		require.Equal(t, []types.UID{"b2"}, q.heard(), "it may fail for ever")
		require.True(t, q.ask("b2"))
		require.False(t, q.ask("b1"))
	})
}

func TestAPlaceThatIsNeverUsedGoesToTheNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 0)
		q.noteAll("b1", "b2")
		require.True(t, q.ask("b1"))
		require.False(t, q.ask("b2"))
		letPass(testPatience)
		require.Equal(t, []types.UID{"b2"}, q.heard())
	})
}

func TestWhoIsRefusedIsWokenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(2, 0)
		q.noteAll("a", "b", "c", "d")
		require.True(t, q.ask("a"))
		require.True(t, q.ask("b"))
		require.False(t, q.ask("c"))
		require.False(t, q.ask("c"))
		require.False(t, q.ask("d"))
		q.Forget("a")
		require.Equal(t, []types.UID{"c"}, q.heard())
		q.Observe(newEntry("e", 9, ""))
		q.Observe(newEntry("e", 9, ""))
		require.Empty(t, q.heard(), "nothing has changed for anybody")
		q.ForgetKey("kind/velero/b")
		require.Equal(t, []types.UID{"d"}, q.heard(), "c was woken and has not come yet; there is a place for both")
		require.True(t, q.ask("d"))
		require.True(t, q.ask("c"))
		require.False(t, q.ask("e"))
	})
}

func TestACacheThatLagsBehindAWriteGivesNoPlaceBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 0)
		q.noteAll("a", "b")
		require.True(t, q.ask("a"))
		require.False(t, q.ask("b"))
		written := newEntry("a", 0, "")
		written.Version, written.Phase = "10", Admitted
		q.Observe(written)
		stale := newEntry("a", 0, "")
		stale.Version = "9"
		q.Observe(stale)
		require.Empty(t, q.heard())
		written.Version, written.Phase = "11", Uncounted
		q.Observe(written)
		require.Equal(t, []types.UID{"b"}, q.heard())
	})
}

func TestMoreMayBePreparingThanTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(2, 0)
		q.noteAll("a", "b", "c", "d")
		for _, uid := range []types.UID{"a", "b", "c"} {
			q.becomes(uid, Admitted) // restarted movers are not held back
			require.True(t, q.ask(uid))
		}
		require.False(t, q.ask("d"))
		q.becomes("a", Uncounted)
		require.Empty(t, q.heard())
		q.becomes("b", Uncounted)
		require.Equal(t, []types.UID{"d"}, q.heard())
	})
}

func TestAResourceThatIsMadeAnewReplacesTheOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 1)
		old := newEntry("old", 0, "n1")
		old.Phase = Admitted
		q.Observe(old)
		requeue := newEntry("new", 1, "n1")
		requeue.Key = old.Key
		require.False(t, q.ask("new"), "it is asked for before it is noted")
		q.Observe(requeue)
		require.Equal(t, []types.UID{"new"}, q.heard())
		require.True(t, q.ask("new"))
		q.Forget("old")
		q.Forget("new")
		require.Empty(t, q.known)
		require.Empty(t, q.uids)
		require.Empty(t, q.nodes, "nothing is kept of what is gone")
		require.True(t, q.cluster.empty())
	})
}

func TestWithoutALimitThereIsRoomForEverybody(t *testing.T) {
	q := newQueue(0, 1)
	for _, uid := range numbered(100) {
		q.Observe(newEntry(uid, 0, "n1"))
		require.True(t, q.ask(uid))
		q.Release(uid)
		q.Forget(uid)
	}
	require.True(t, q.ask("unknown"))
	require.Empty(t, q.known, "nothing is kept")
}

func TestATransferWhoseNodeBecomesKnownWaitsForThatNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(4, 1)
		first := newEntry("a", 0, "n1")
		first.Phase = Admitted
		q.Observe(first)
		q.Observe(newEntry("r", 1, ""))
		q.Observe(newEntry("r", 1, "n1"))
		require.False(t, q.ask("r"))
		q.Observe(newEntry("r", 1, "n2"))
		require.Equal(t, []types.UID{"r"}, q.heard())
	})
}
