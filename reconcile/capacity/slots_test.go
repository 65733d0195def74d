package capacity

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// recorder records what was enqueued, also by timers.
type recorder struct {
	mutex    sync.Mutex
	enqueued []types.UID
}

func (r *recorder) enqueue(uid types.UID) func() {
	return func() {
		r.mutex.Lock()
		defer r.mutex.Unlock()
		r.enqueued = append(r.enqueued, uid)
	}
}

// created returns the creation time of the resource with that age; smaller numbers are older.
func created(age int) time.Time { return time.Unix(1_800_000_000+int64(age), 0) }

// slotsModel is the simplest Slots: it sorts those that wait after each change.
type slotsModel struct {
	limit    int
	held     map[types.UID]bool
	waiting  []types.UID // a UID begins with its age
	enqueued []types.UID
}

// mayStart queues a resource without a slot, and reports whether it has one or may take one.
func (s *slotsModel) mayStart(uid types.UID) bool {
	if s.held[uid] {
		return true
	}
	if !slices.Contains(s.waiting, uid) {
		s.waiting = append(s.waiting, uid)
		slices.Sort(s.waiting)
	}
	return slices.Contains(s.next(), uid)
}

// next returns those for which a slot is free, oldest first.
func (s *slotsModel) next() []types.UID {
	return s.waiting[:min(len(s.waiting), max(s.limit-len(s.held), 0))]
}

func (s *slotsModel) remove(uid types.UID) {
	s.waiting = slices.DeleteFunc(s.waiting, func(one types.UID) bool { return one == uid })
}

func (s *slotsModel) hold(uid types.UID) {
	s.remove(uid)
	s.held[uid] = true
}

func (s *slotsModel) release(uid types.UID) {
	known := s.held[uid] || slices.Contains(s.waiting, uid)
	s.remove(uid)
	delete(s.held, uid)
	if known {
		s.enqueued = append(s.enqueued, s.next()...)
	}
}

// FuzzSlots plays random steps, and compares Slots with its model after each.
func FuzzSlots(f *testing.F) {
	for seed := range uint64(100) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed uint64) {
		random := rand.New(rand.NewPCG(seed, seed))
		limit := 1 + random.IntN(3)
		slots, model, recorded := NewSlots(limit), &slotsModel{limit: limit, held: map[types.UID]bool{}}, &recorder{}
		for range 200 {
			age := random.IntN(6) / 2 // two of each age
			uid := types.UID(fmt.Sprint(age, "ab"[random.IntN(2):][:1]))
			switch random.IntN(10) {
			case 0, 1:
				require.Equal(t, model.mayStart(uid), slots.Queue(uid, created(age), recorded.enqueue(uid)))
			case 2, 3, 4, 5:
				may := model.mayStart(uid)
				if may {
					model.hold(uid)
				}
				require.Equal(t, may, slots.TryAcquire(uid, created(age), recorded.enqueue(uid)))
			case 6: // its mover works already, perhaps above the limit
				slots.ForceAcquire(uid)
				model.hold(uid)
			case 7:
				limit := 1 + random.IntN(3)
				slots.SetLimit(limit)
				if limit != model.limit { // else those that may start have been called before
					model.limit = limit
					model.enqueued = append(model.enqueued, model.next()...)
				}
			default:
				slots.Release(uid)
				model.release(uid)
			}
			require.Equal(t, model.enqueued, recorded.enqueued)
			require.Equal(t, []int{len(model.held), model.limit}, []int{slots.InUse(), slots.Limit()})
		}
	})
}

func TestNodesHaveSeparateSlots(t *testing.T) {
	nodeSlots := NewNodeSlots(func(node string) int { return map[string]int{"n1": 2, "n2": 1, "n3": 1}[node] })
	take := func(node string, uid types.UID, age int) bool {
		return nodeSlots.TryAcquire(node, uid, created(age), func() {})
	}
	require.True(t, take("n1", "a", 1))
	require.True(t, take("n1", "b", 2))
	require.False(t, take("n1", "c", 3), "it has two")
	require.True(t, take("n2", "d", 4))
	require.False(t, take("n2", "e", 5), "it has one")
	require.True(t, take("n3", "f", 6))
	require.Equal(t, 2, nodeSlots.On("n1").InUse())
}

func TestAResourceThatChangesItsNodeReleasesItsSlot(t *testing.T) {
	nodeSlots := NewNodeSlots(Same(1))
	nodeSlots.ForceAcquire("n2", "a")
	enqueued := 0
	require.False(t, nodeSlots.Queue("n2", "b", created(2), func() { enqueued++ }))
	nodeSlots.ForceAcquire("n3", "a")
	require.Equal(t, 1, enqueued)
	require.True(t, nodeSlots.TryAcquire("n2", "b", created(2), func() {}))
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
		return nodeSlots.TryAcquire(node, uid, created(age), recorded.enqueue(uid))
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
