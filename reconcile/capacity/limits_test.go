package capacity

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

func (r *recordedPreparation) tryOf(class string, uid types.UID, age int) bool {
	return r.TryAcquire(Transfer{UID: uid, StorageClass: class, Created: created(age)}, r.enqueue(uid))
}

func limitedTo(limits Limits, preparation *Preparation) *recordedPreparation {
	preparation.SetLimits(limits)
	return &recordedPreparation{Preparation: preparation}
}

func TestTheClusterHasALimit(t *testing.T) {
	for name, preparation := range map[string]*Preparation{"with a queue": NewQueue(9, 9), "without": FixedPreparation(9)} {
		t.Run(name, func(t *testing.T) {
			p := limitedTo(Limits{Cluster: 2, StorageClasses: map[string]int{"": 1}}, preparation)
			require.True(t, p.tryAcquire("node-1", "first", 1))
			require.True(t, p.tryOf("", "second", 2), "without a class, it has no limit of one")
			require.False(t, p.tryAcquire("node-2", "third", 3))
			p.track("first", Working, "node-1")
			require.Empty(t, p.taken(), "a transfer counts until it ends")
			p.track("first", Ended, "node-1")
			require.Equal(t, []types.UID{"third"}, p.taken())
			require.True(t, p.tryAcquire("node-2", "third", 3))
			require.False(t, p.tryOf("", "fourth", 4))
			p.SetLimits(Limits{})
			require.Equal(t, []types.UID{"fourth"}, p.taken())
		})
	}
}

func TestAStorageClassHasALimit(t *testing.T) {
	p := limitedTo(Limits{Cluster: 3, StorageClasses: map[string]int{"slow": 1}}, FixedPreparation(3))
	require.True(t, p.tryOf("slow", "first", 1))
	require.False(t, p.tryOf("slow", "second", 2))
	require.True(t, p.tryOf("fast", "third", 3), "a transfer that waits for its class holds no place")
	require.True(t, p.tryOf("fast", "fourth", 4))
	require.False(t, p.tryOf("fast", "fifth", 5))
	p.Release("first")
	require.ElementsMatch(t, []types.UID{"second", "fifth"}, p.taken())
	require.True(t, p.tryOf("slow", "second", 2))
	p.Release("third")
	require.False(t, p.tryOf("slow", "fifth", 5) || p.tryOf("slow", "sixth", 6))
	require.True(t, p.tryOf("", "fifth", 5), "its class is not known any more")
	p.Release("second")
	require.Equal(t, []types.UID{"sixth"}, p.taken())
}

func TestARestoreIsBeforeBackupsOfItsStorageClass(t *testing.T) {
	p := limitedTo(Limits{StorageClasses: map[string]int{"slow": 1}}, NewQueue(9, 9))
	require.True(t, p.tryOf("slow", "first", 1))
	require.False(t, p.tryOf("slow", "backup", 2))
	require.False(t, p.TryAcquire(Transfer{UID: "restore", StorageClass: "slow", Restore: true, Created: created(3)}, p.enqueue("restore")))
	p.Release("first")
	require.Equal(t, []types.UID{"restore"}, p.taken())
}

// One that waits for a place keeps its turn, so no other of its class is enqueued in vain.
func TestAStorageClassEnqueuesNoMoreThanItHasRoomFor(t *testing.T) {
	p := limitedTo(Limits{StorageClasses: map[string]int{"slow": 1}}, NewQueue(1, 1))
	require.True(t, p.tryOf("slow", "first", 1))
	p.Track(Transfer{UID: "first", StorageClass: "slow"}, Working, "", nil)
	require.False(t, p.tryOf("slow", "second", 2))
	require.False(t, p.tryOf("slow", "third", 3))
	require.True(t, p.tryOf("fast", "fourth", 4))
	p.Release("first")
	require.Equal(t, []types.UID{"second"}, p.taken())
	require.False(t, p.tryOf("slow", "second", 2), "there is no place")
	require.Empty(t, p.taken())
	p.Release("fourth")
	require.Equal(t, []types.UID{"second"}, p.taken())
	require.True(t, p.tryOf("slow", "second", 2))
	p.Track(Transfer{UID: "second", StorageClass: "slow"}, Working, "", nil)
	p.SetLimits(Limits{Cluster: 1, StorageClasses: map[string]int{"slow": 1}})
	require.False(t, p.tryOf("slow", "third", 3), "the cluster is full too")
	p.Release("second")
	require.Equal(t, []types.UID{"third"}, p.taken(), "once")
}

func TestTransfersThatOtherAgentsAcceptedCount(t *testing.T) {
	p := limitedTo(Limits{Cluster: 1}, FixedPreparation(1))
	p.Track(Transfer{UID: "accepted-by-velero", Veleros: true}, Working, "", nil)
	require.False(t, p.tryOf("", "second", 2))
	require.Zero(t, p.fleet.InUse(), "they are not paced")
	require.False(t, p.tryAcquire("node-1", "third", 3))
	p.track("accepted by another coordinator", Starting, "node-1")
	p.SetLimits(Limits{Cluster: 4})
	require.False(t, p.tryAcquire("node-1", "third", 3), "its node has no place")
	require.True(t, p.tryAcquire("node-2", "fourth", 4), "the third does not hold it up")
}

// TestNoTransferWaitsForeverAndNoLimitIsExceeded plays transfers of three classes on two nodes and in the fleet. Each is tried when it
// is created and when it is enqueued, and ends at random.
func TestNoTransferWaitsForeverAndNoLimitIsExceeded(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // not for secrets
		limits := Limits{Cluster: 1 + random.IntN(4), StorageClasses: map[string]int{"a": 1 + random.IntN(2), "b": 1}}
		p := limitedTo(limits, FixedPreparation(1+random.IntN(3)))
		all, due, running, accepted := map[types.UID]Transfer{}, []types.UID{}, []types.UID{}, 0
		for age, uid := range numbered(60) {
			one := Transfer{UID: uid, Created: created(age), Restore: random.IntN(3) == 0, Home: []string{"", "", "node-1", "node-2"}[random.IntN(4)]}
			if one.Home == "" {
				one.StorageClass = []string{"a", "b", "c"}[random.IntN(3)]
			}
			all[uid], due = one, append(due, uid)
		}
		for len(due) > 0 || len(running) > 0 {
			if len(running) > 0 && (len(due) == 0 || random.IntN(2) == 0) {
				index := random.IntN(len(running))
				p.Track(all[running[index]], Ended, "", nil)
				running = slices.Delete(running, index, index+1)
			} else if uid := due[0]; p.TryAcquire(all[uid], p.enqueue(uid)) {
				p.Track(all[uid], Starting, "", nil)
				running, accepted = append(running, uid), accepted+1
				due = due[1:]
			} else {
				due = due[1:]
			}
			due = append(due, p.taken()...)
			count := map[string]int{}
			for _, uid := range running {
				count[all[uid].StorageClass]++
			}
			require.LessOrEqual(t, len(running), limits.Cluster, "seed %d", seed)
			require.LessOrEqual(t, count["a"], limits.StorageClasses["a"], "seed %d", seed)
			require.LessOrEqual(t, count["b"], limits.StorageClasses["b"], "seed %d", seed)
		}
		require.Equal(t, len(all), accepted, "seed %d", seed)
	}
}
