package sim

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

// TestATransferKeepsWithinItsBudgetOfRequests compares schedules of one and of several transfers on one node, without faults:
// what an agent sends at its start is in both. Kubernetes Events, Leases and watches are not counted.
func TestATransferKeepsWithinItsBudgetOfRequests(t *testing.T) {
	const more, schedules = 5, 20
	const slow = 2 // more for each transfer, where a cache is slower than all others
	for kind, most := range map[Kind]struct{ writes, reads int }{
		// On average: conflicts repeat a write, and what is read or written again depends on which cache is faster. An upload that
		// waits for its turn gets its finalizer before it is accepted.
		Backup: {7, 1}, Restore: {7, 1}, Upload: {17, 5}, Download: {14, 10},
	} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			writes, reads := 0, 0
			for seed := range uint64(schedules) {
				oneWrites, oneReads := requests(t, seed, kind, 1)
				allWrites, allReads := requests(t, seed, kind, 1+more)
				require.LessOrEqual(t, allWrites-oneWrites, more*(most.writes+slow), "writes of seed %d", seed)
				require.LessOrEqual(t, allReads-oneReads, more*(most.reads+slow), "reads of seed %d", seed)
				writes, reads = writes+allWrites-oneWrites, reads+allReads-oneReads
			}
			require.LessOrEqual(t, writes, schedules*more*most.writes, "writes")
			require.LessOrEqual(t, reads, schedules*more*most.reads, "reads")
		})
	}
}

// TestThePrepareQueueIsOneForAllKinds has one agent, whose own writes its caches need not show: no transfer is prepared beyond the
// queue.
func TestThePrepareQueueIsOneForAllKinds(t *testing.T) {
	t.Parallel()
	const schedules = 50
	for seed := range uint64(schedules) {
		plan := Plan{Seed: seed, Nodes: 1, Slots: 4, Queue: 2}
		for _, kind := range Kinds() {
			plan.Work = append(plan.Work, Work{Kind: kind}, Work{Kind: kind})
		}
		trace, broken := play(t, plan)
		require.NoError(t, broken, "%s", trace)
	}
}

// requests plays a schedule of count transfers of a kind and returns how many requests the agent sent.
func requests(t *testing.T, seed uint64, kind Kind, count int) (writes, reads int) {
	t.Helper()
	plan := Plan{Seed: seed, Nodes: 1, Slots: 1, Hurry: true}
	for range count {
		plan.Work = append(plan.Work, Work{Kind: kind})
	}
	synctest.Test(t, func(t *testing.T) {
		s := newSimulation(plan)
		require.NoError(t, s.run(), "%s", s.trace)
		writes, reads = s.promises.writes, s.promises.reads
	})
	return writes, reads
}
