package capacity

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/reconcile/seeds"
)

// recordedSlots are Slots that record their enqueue calls.
type recordedSlots struct {
	*Slots
	enqueued []types.UID
}

func newRecordedSlots(limit int) *recordedSlots { return &recordedSlots{Slots: NewSlots(limit)} }

// created returns the creation time of the resource with that age; smaller numbers are older.
func created(age int) time.Time { return time.Unix(1_800_000_000+int64(age), 0) }

func (l *recordedSlots) queue(uid types.UID, age int) bool {
	return l.Queue(uid, created(age), func() { l.enqueued = append(l.enqueued, uid) })
}

func (l *recordedSlots) tryAcquire(uid types.UID, age int) bool {
	return l.TryAcquire(uid, created(age), func() { l.enqueued = append(l.enqueued, uid) })
}

// takeEnqueued returns the resources enqueued since its last call.
func (l *recordedSlots) takeEnqueued() []types.UID {
	enqueued := l.enqueued
	l.enqueued = nil
	return enqueued
}

func TestSlotsAreNeverMoreThanTheLimit(t *testing.T) {
	const limit, transfers = 4, 400
	slots := NewSlots(limit)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var working, tooMany atomic.Int32
	var all sync.WaitGroup
	for i := range transfers {
		all.Go(func() {
			uid := types.UID(fmt.Sprint(i))
			enqueued := make(chan struct{}, 1)
			enqueue := func() {
				select {
				case enqueued <- struct{}{}:
				default:
				}
			}
			for !slots.TryAcquire(uid, created(i%7), enqueue) {
				select {
				case <-enqueued:
				case <-ctx.Done():
					t.Errorf("transfer %s was never enqueued", uid)
					return
				}
			}
			if working.Add(1) > limit {
				tooMany.Add(1)
			}
			runtime.Gosched()
			working.Add(-1)
			slots.Release(uid)
		})
	}
	all.Wait()
	require.Zero(t, tooMany.Load(), "more than %d worked at once", limit)
	require.Zero(t, slots.InUse())
}

func TestSlotsGoToTheOldestInTheQueue(t *testing.T) {
	seeds.Each(t, 1, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		const waiting = 50
		slots := newRecordedSlots(1)
		require.True(t, slots.tryAcquire("first", -1))
		for _, age := range random.Perm(waiting) {
			require.False(t, slots.queue(types.UID(fmt.Sprintf("%02d", age)), age/2), "no slot is free; two of each age")
		}
		holder := types.UID("first")
		for next := range waiting {
			slots.Release(holder)
			holder = types.UID(fmt.Sprintf("%02d", next))
			require.Equal(t, []types.UID{holder}, slots.takeEnqueued(), "only the oldest is enqueued")
			require.True(t, slots.tryAcquire(holder, next/2))
		}
	})
}

func TestAFreeSlotIsReservedForTheOldest(t *testing.T) {
	slots := newRecordedSlots(1)
	require.True(t, slots.queue("old", 1), "it is free, and nothing is before it")
	require.False(t, slots.queue("young", 2), "the old one is before it")
	require.False(t, slots.tryAcquire("young", 2))
	require.True(t, slots.queue("older", 0))
	require.False(t, slots.tryAcquire("old", 1), "an older one came in the meantime")
	require.True(t, slots.tryAcquire("older", 0))
	require.Equal(t, 1, slots.InUse())
}

func TestLeavingTheQueueEnqueuesTheNext(t *testing.T) {
	slots := newRecordedSlots(1)
	slots.queue("old", 1)
	slots.queue("young", 2)
	slots.Release("old")
	require.Equal(t, []types.UID{"young"}, slots.takeEnqueued())
	require.True(t, slots.tryAcquire("young", 2))
}

func TestAsManyAreEnqueuedAsSlotsAreFree(t *testing.T) {
	slots := newRecordedSlots(2)
	slots.tryAcquire("a", 1)
	slots.tryAcquire("b", 2)
	for age, uid := range []types.UID{"c", "d", "e"} {
		require.False(t, slots.queue(uid, 3+age))
	}
	slots.Release("a")
	require.Equal(t, []types.UID{"c"}, slots.takeEnqueued())
	slots.Release("b")
	require.Equal(t, []types.UID{"c", "d"}, slots.takeEnqueued(), "c has not requested yet")
	require.True(t, slots.tryAcquire("d", 4), "it need not wait for c: there is a slot for both")
	require.False(t, slots.tryAcquire("e", 5))
	require.True(t, slots.tryAcquire("c", 3))
}

func TestQueueIsIdempotent(t *testing.T) {
	slots := newRecordedSlots(2)
	require.True(t, slots.queue("a", 1))
	require.True(t, slots.queue("a", 1))
	require.True(t, slots.queue("b", 2), "there is a slot for both")
}

func TestNothingIsEnqueuedWithoutAFreedSlot(t *testing.T) {
	slots := newRecordedSlots(2)
	slots.tryAcquire("a", 1)
	require.True(t, slots.queue("b", 2), "a slot is free at once")
	slots.Release("unknown")
	require.Empty(t, slots.takeEnqueued())
	require.Equal(t, 1, slots.InUse())
}

func TestTryAcquireIsIdempotent(t *testing.T) {
	slots := newRecordedSlots(1)
	require.True(t, slots.tryAcquire("a", 1))
	require.True(t, slots.tryAcquire("a", 1), "it is requested again after an ambiguous answer")
	require.True(t, slots.queue("a", 1))
	require.Equal(t, 1, slots.InUse())
	slots.Release("a")
	require.Zero(t, slots.InUse())
}

func TestReleaseLeavesTheQueue(t *testing.T) {
	slots := newRecordedSlots(1)
	slots.tryAcquire("a", 1)
	slots.queue("b", 2)
	slots.queue("c", 3)
	slots.Release("b")
	require.Empty(t, slots.takeEnqueued(), "a still works")
	slots.Release("a")
	require.Equal(t, []types.UID{"c"}, slots.takeEnqueued())
	require.Zero(t, slots.InUse())
}

func TestWorkingMoversMayExceedTheLimit(t *testing.T) {
	slots := newRecordedSlots(2)
	for _, uid := range []types.UID{"a", "b", "c"} {
		slots.ForceAcquire(uid)
		slots.ForceAcquire(uid)
	}
	require.Equal(t, 3, slots.InUse())
	require.Equal(t, 2, slots.Limit())
	require.False(t, slots.queue("d", 1))
	slots.Release("a")
	require.Empty(t, slots.takeEnqueued(), "still at the limit")
	slots.Release("b")
	require.Equal(t, []types.UID{"d"}, slots.takeEnqueued())
}

func TestForceAcquireLeavesTheQueue(t *testing.T) {
	slots := newRecordedSlots(1)
	slots.tryAcquire("a", 1)
	slots.queue("b", 2)
	slots.ForceAcquire("b")
	slots.Release("a")
	require.Empty(t, slots.takeEnqueued(), "b holds the slot already")
	require.Equal(t, 1, slots.InUse())
}
