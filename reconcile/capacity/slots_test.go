package capacity

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// recorder records what was enqueued.
type recorder struct{ enqueued []types.UID }

func (r *recorder) enqueue(uid types.UID) func() {
	return func() { r.enqueued = append(r.enqueued, uid) }
}

// created returns the creation time of the resource with that age; smaller numbers are older.
func created(age int) time.Time { return time.Unix(1_800_000_000+int64(age), 0) }

// recordedSlots are Slots that record their enqueue calls.
type recordedSlots struct {
	*Slots
	recorder
}

func newRecordedSlots(limit, perNode int) *recordedSlots {
	s := &recordedSlots{Slots: NewSlots(limit)}
	s.perNode = Same(perNode)
	return s
}

// named returns a transfer. A UID that begins with r is a restore; its number is its age.
func named(uid types.UID, home string) Transfer {
	age := 0
	_, err := fmt.Sscanf(string(uid[1:]), "%d", &age)
	if err != nil {
		panic(err)
	}
	return Transfer{UID: uid, Created: created(age), Restore: uid[0] == 'r', Home: home}
}

func (r *recordedSlots) try(home string, uid types.UID) bool {
	return r.TryAcquire(named(uid, home), r.enqueue(uid))
}

// taken returns the transfers enqueued since its last call.
func (r *recorder) taken() []types.UID {
	enqueued := r.enqueued
	r.enqueued = nil
	return enqueued
}

// numbered returns the UIDs of that many backups.
func numbered(count int) []types.UID {
	var uids []types.UID
	for i := range count {
		uids = append(uids, types.UID(fmt.Sprintf("b%04d", i)))
	}
	return uids
}

func TestTheOldestQueuedTransferIsNext(t *testing.T) {
	q := newRecordedSlots(1, 1)
	q.ForceAcquire(Transfer{UID: "accepted by Velero"})
	for _, uid := range []types.UID{"b3", "b1", "b2"} {
		require.False(t, q.try("", uid))
	}
	q.Release("accepted by Velero")
	require.Equal(t, []types.UID{"b1"}, q.taken())
	require.False(t, q.try("", "b2"), "b1 has been called")
	q.Release("b1")
	require.Equal(t, []types.UID{"b2"}, q.taken(), "b1 is not eligible any more")
	require.True(t, q.try("", "b2"))
	require.True(t, q.try("", "b2"), "it has its place already")
	q.Release("b2")
	require.Equal(t, []types.UID{"b3"}, q.taken())
	require.True(t, q.Queue(named("b3", ""), q.enqueue("b3")))
	require.Zero(t, q.InUse(), "b3 is next, and has taken none yet")
	require.Empty(t, q.taken(), "it knows")
}

func TestANodeHasNoMorePlacesThanItsSlots(t *testing.T) {
	q := newRecordedSlots(3, 1)
	require.True(t, q.try("n1", "b1"))
	require.False(t, q.try("n1", "b2"))
	require.True(t, q.try("n2", "b3"))
	require.True(t, q.try("", "b4"))
	q.setPerNode(Same(2))
	require.Empty(t, q.taken(), "the cluster has no place")
	q.Release("b4")
	require.Equal(t, []types.UID{"b2"}, q.taken())
	q.Release("b3")
	require.False(t, q.try("n1", "b5"), "b2 is next there")
}

func TestBackupsLeaveAQuarterOfThePlacesToRestores(t *testing.T) {
	for sentence, is := range map[string]struct {
		length, held int
		queued, want []types.UID
	}{
		"no place is free":                               {4, 4, []types.UID{"b1", "r2"}, nil},
		"a quarter of the places":                        {8, 0, []types.UID{"b1", "b2", "b3", "b4", "b5", "b6", "b7", "r8"}, []types.UID{"b1", "b2", "b3", "b4", "b5", "b6", "r8"}},
		"a quarter is at least one":                      {2, 0, []types.UID{"b1", "b2", "r3"}, []types.UID{"b1", "r3"}},
		"the only place":                                 {1, 0, []types.UID{"b1", "b2", "r3"}, []types.UID{"r3"}},
		"a quarter is rounded down":                      {7, 0, []types.UID{"b1", "b2", "b3", "b4", "b5", "b6", "b7", "r8"}, []types.UID{"b1", "b2", "b3", "b4", "b5", "b6", "r8"}},
		"held places count":                              {4, 3, []types.UID{"b1", "b2", "r3", "r4"}, []types.UID{"r3"}},
		"backups use the last place if no restore waits": {4, 3, []types.UID{"b1", "b2"}, []types.UID{"b1"}},
	} {
		t.Run(sentence, func(t *testing.T) {
			q := newRecordedSlots(0, 1)
			for i := range is.held {
				q.ForceAcquire(Transfer{UID: types.UID(fmt.Sprint("held ", i))})
			}
			for _, uid := range is.queued {
				require.False(t, q.try("", uid))
			}
			q.SetLimit(is.length)
			require.Equal(t, is.want, q.taken())
		})
	}
	q := newRecordedSlots(4, 1)
	require.True(t, q.try("n1", "b1"))
	require.False(t, q.try("n1", "r2"))
	for _, uid := range []types.UID{"b3", "b4", "b5"} {
		require.True(t, q.try("", uid), "the restore waits for its node: it needs none of the others' places")
	}
}

// FuzzSlots applies random changes. After each, no limit is exceeded, and every transfer for which a slot is free has been
// called since it was queued.
func FuzzSlots(f *testing.F) {
	for seed := range uint64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, seed))
		s := newRecordedSlots(1+random.IntN(6), 1+random.IntN(3))
		for range 200 {
			uid := types.UID(fmt.Sprintf("%c%d", "br"[random.IntN(2)], random.IntN(12)))
			transfer := named(uid, []string{"", "n1", "n2"}[uid[len(uid)-1]%3])
			held, onNode := s.InUse(), maps.Clone(s.onNode)
			switch random.IntN(12) {
			case 0, 1, 2, 3:
				s.Release(uid)
			case 4: // its mover works already, perhaps above the limit
				s.ForceAcquire(transfer)
				held, onNode = len(s.held), maps.Clone(s.onNode)
			case 5:
				s.SetLimit(1 + random.IntN(6))
			case 6, 7:
				free := s.Queue(transfer, s.enqueue(uid))
				require.Equal(t, held, s.InUse(), "it takes none")
				require.Equal(t, free, s.TryAcquire(transfer, s.enqueue(uid)))
			default:
				s.TryAcquire(transfer, s.enqueue(uid))
			}
			require.LessOrEqual(t, s.InUse(), max(held, s.Limit()))
			for _, node := range []string{"n1", "n2"} {
				require.LessOrEqual(t, s.onNode[node], max(onNode[node], s.perNode(node)))
			}
			holders := map[string]int{}
			for _, node := range s.held {
				holders[node]++
			}
			require.Equal(t, holders, s.onNode)
			for _, next := range s.next() {
				require.Nil(t, next.enqueue, "%s has not been called", next.UID)
			}
			require.LessOrEqual(t, len(s.waiting)+s.InUse(), 24, "one is queued twice")
		}
	})
}

func TestAResourceThatChangesItsNodeReleasesItsSlot(t *testing.T) {
	nodeSlots := NewNodeSlots(Same(1))
	nodeSlots.ForceAcquire("n2", "a")
	enqueued := 0
	require.False(t, nodeSlots.Queue("n2", "b", created(2), func() { enqueued++ }))
	nodeSlots.ForceAcquire("n3", "a")
	require.Equal(t, 1, enqueued)
	require.True(t, nodeSlots.TryAcquire("n2", Transfer{UID: "b", Created: created(2)}, func() {}))
	require.Equal(t, 1, nodeSlots.On("n3").InUse())
	nodeSlots.Release("a")
	nodeSlots.Release("a")
	require.Zero(t, nodeSlots.On("n3").InUse())
	require.Len(t, nodeSlots.where, 1)
}

func TestChangedLimitsDisturbNoHolderAndEnqueueWhatMayStart(t *testing.T) {
	nodeSlots := NewNodeSlots(Same(1))
	recorded := &recorder{}
	queue := func(node string, uid types.UID, age int) bool {
		return nodeSlots.TryAcquire(node, Transfer{UID: uid, Created: created(age)}, recorded.enqueue(uid))
	}
	require.True(t, queue("n1", "a", 1))
	require.True(t, queue("n2", "b", 1))
	require.False(t, queue("n1", "c", 2))
	require.False(t, queue("n2", "d", 2))
	nodeSlots.SetLimits(Same(2))
	require.ElementsMatch(t, []types.UID{"c", "d"}, recorded.enqueued)
	require.True(t, queue("n1", "c", 2))
	require.True(t, queue("n3", "e", 1))
	require.True(t, queue("n3", "f", 2), "a node that is new since then")
	nodeSlots.SetLimits(Same(1))
	require.Equal(t, 2, nodeSlots.On("n1").InUse())
	nodeSlots.Release("a")
	require.False(t, queue("n1", "g", 3), "one still works")
	nodeSlots.Release("c")
	require.True(t, queue("n1", "g", 3))
}

func TestANodeThatLeavesTheClusterKeepsOnlyWhatIsHeldThere(t *testing.T) {
	slots := NewNodeSlots(Same(1))
	slots.ForceAcquire("busy", "a")
	slots.ForceAcquire("idle", "b")
	slots.Release("b")
	slots.Forget("busy")
	slots.Forget("idle")
	require.Len(t, slots.nodes, 1)
	require.False(t, slots.TryAcquire("busy", Transfer{UID: "c"}, func() {}))
}

// A worker with an old version must not take a slot after an event of the end of the resource has released it.
func TestAReleaseWaitsForAnAcquireThatHasBegun(t *testing.T) {
	n := NewNodeSlots(Same(1))
	slots := n.On("n1")
	slots.lock.Lock()
	acquired := make(chan struct{})
	go func() { n.ForceAcquire("n1", "a"); close(acquired) }()
	for tries := 0; tries < 1000; tries++ { // until it keeps the lock
		if n.lock.TryLock() {
			require.NotContains(t, n.where, types.UID("a"), "a release would not find the slot that it takes next")
			n.lock.Unlock()
			tries = 0
		}
		runtime.Gosched()
	}
	slots.lock.Unlock()
	<-acquired
	n.Release("a")
	require.Zero(t, slots.InUse())
}
