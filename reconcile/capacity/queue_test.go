package capacity

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

// recordedQueue is a queue that records its enqueue calls.
type recordedQueue struct {
	*queue
	recorder
}

func newRecordedQueue(length, perNode int) *recordedQueue {
	return &recordedQueue{queue: newQueue(length, perNode)}
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

func (r *recordedQueue) try(home string, uid types.UID) bool {
	return r.tryAcquire(named(uid, home), r.enqueue(uid))
}

// taken returns the transfers enqueued since its last call.
func (r *recordedQueue) taken() []types.UID {
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
	q := newRecordedQueue(1, 1)
	q.track(Transfer{UID: "accepted by Velero", Veleros: true}, Starting)
	for _, uid := range []types.UID{"b3", "b1", "b2"} {
		require.False(t, q.try("", uid))
	}
	q.track(Transfer{UID: "accepted by Velero", Veleros: true}, Working)
	require.Equal(t, []types.UID{"b1"}, q.taken())
	require.False(t, q.try("", "b2"), "b1 has been called")
	q.release("b1")
	require.Equal(t, []types.UID{"b2"}, q.taken(), "b1 is not eligible any more")
	require.True(t, q.try("", "b2"))
	require.True(t, q.try("", "b2"), "it has its place already")
	for _, stage := range []Stage{Starting, Late, Ready} {
		q.track(named("b2", ""), stage)
		require.Empty(t, q.taken())
	}
	q.track(named("b2", ""), Working)
	require.Equal(t, []types.UID{"b3"}, q.taken())
}

func TestANodeHasNoMorePlacesThanItsSlots(t *testing.T) {
	q := newRecordedQueue(3, 1)
	require.True(t, q.try("n1", "b1"))
	require.False(t, q.try("n1", "b2"))
	require.True(t, q.try("n2", "b3"))
	require.True(t, q.try("", "b4"))
	q.setPerNode(2)
	require.Empty(t, q.taken(), "the cluster has no place")
	q.release("b4")
	require.Equal(t, []types.UID{"b2"}, q.taken())
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
			q := newRecordedQueue(0, 100)
			for i := range is.held {
				q.track(Transfer{UID: types.UID(fmt.Sprint("held ", i))}, Ready)
			}
			for _, uid := range is.queued {
				require.False(t, q.try("", uid))
			}
			q.length = is.length
			q.setPerNode(100)
			require.Equal(t, is.want, q.taken())
		})
	}
	q := newRecordedQueue(4, 1)
	require.True(t, q.try("n1", "b1"))
	require.False(t, q.try("n1", "r2"))
	for _, uid := range []types.UID{"b3", "b4", "b5"} {
		require.True(t, q.try("", uid), "the restore waits for its node: it needs none of the others' places")
	}
}

// TestNoPlaceIsGivenTwiceOrForgotten applies random changes. After each, no limit is exceeded, and every transfer that may
// take a place has been called since it was queued.
func TestNoPlaceIsGivenTwiceOrForgotten(t *testing.T) {
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // repeatable
		length, perNode := 1+random.IntN(6), 1+random.IntN(3)
		q := newRecordedQueue(length, perNode)
		for range 200 {
			uid := types.UID(fmt.Sprintf("%c%d", "br"[random.IntN(2)], random.IntN(12)))
			home := []string{"", "n1", "n2"}[uid[len(uid)-1]%3]
			if random.IntN(3) == 0 {
				q.release(uid)
			} else {
				q.try(home, uid)
			}
			require.LessOrEqual(t, len(q.held), length, "seed %d", seed)
			for _, node := range []string{"n1", "n2"} {
				require.LessOrEqual(t, q.onNode[node], perNode, "seed %d", seed)
			}
			for _, next := range q.next() {
				require.Nil(t, next.enqueue, "seed %d: %s has not been called", seed, next.UID)
			}
			require.LessOrEqual(t, len(q.waiting)+len(q.held), 24, "seed %d: one is queued twice", seed)
		}
	}
}
