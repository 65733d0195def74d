package capacity

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/types"
)

func TestARestoreIsNotStarvedByAHundredBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(4, 0)
		backups := numbered(100)
		q.observeAll(backups...)
		for _, uid := range backups {
			require.Equal(t, uid < "b0004", q.tryAdmit(uid))
		}
		q.Observe(newEntry("r", 100, ""))
		require.False(t, q.tryAdmit("r"), "all places are in use")
		q.observePhase("b0000", Admitted)
		require.Empty(t, q.takeEnqueued())
		q.observePhase("b0000", Uncounted)
		require.Equal(t, []types.UID{"r"}, q.takeEnqueued(), "the first place is for the restore, though it is the youngest")
		require.True(t, q.tryAdmit("r"))
		q.observePhase("b0001", Uncounted)
		require.Equal(t, []types.UID{"b0004"}, q.takeEnqueued(), "the next one is for a backup again")
	})
}

func TestBackupsOfOneNodeDoNotBlockOtherNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(6, 2)
		backups := numbered(100)
		for age, uid := range backups {
			q.Observe(newEntry(uid, age, "busy"))
		}
		for age, uid := range []types.UID{"x", "y", "z"} {
			q.Observe(newEntry(uid, 100+age, "idle-"+string(uid)))
		}
		var admitted []types.UID
		for _, uid := range append(backups, "x", "y", "z") {
			if q.tryAdmit(uid) {
				admitted = append(admitted, uid)
			}
		}
		require.Equal(t, []types.UID{"b0000", "b0001", "x", "y", "z"}, admitted)
		q.observePhase("x", Uncounted)
		require.Empty(t, q.takeEnqueued(), "a node at its limit gets no place of another node")
		q.observePhase("b0000", Uncounted)
		require.Equal(t, []types.UID{"b0002"}, q.takeEnqueued())
	})
}

func TestBackupsOfANodeDoNotStarveItsRestores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(10, 1)
		for age, uid := range numbered(100) {
			q.Observe(newEntry(uid, age, "n1"))
		}
		require.True(t, q.tryAdmit("b0000"))
		require.False(t, q.tryAdmit("b0001"))
		q.Observe(newEntry("r", 100, "n1"))
		require.False(t, q.tryAdmit("r"))
		q.observePhase("b0000", Uncounted)
		require.Equal(t, []types.UID{"r"}, q.takeEnqueued())
	})
}

func TestAnUnacceptedTransferLosesItsPlaceAfterTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(1, 0)
		q.observeAll("lost", "b1")
		require.False(t, q.tryAdmit("b1"), "the older one is admissible")
		letPass(testTimeout - 1)
		require.Empty(t, q.takeEnqueued())
		letPass(1)
		require.Equal(t, []types.UID{"b1"}, q.takeEnqueued())
		require.True(t, q.tryAdmit("b1"))
		q.observePhase("b1", Admitted)

		changed := newEntry("lost", 0, "")
		changed.Version = "2"
		q.Observe(changed)
		q.Observe(newEntry("b2", 2, ""))
		require.False(t, q.tryAdmit("b2"))
		q.observePhase("b1", Uncounted)
		require.Empty(t, q.takeEnqueued(), "a changed transfer is admissible again")
		require.True(t, q.tryAdmit("lost"))
	})
}

func TestAnUnacceptedRestoreReservesNothingAfterTheTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newRecordedAdmission(2, 0)
		q.observeAll("r", "b1", "b2")
		require.False(t, q.tryAdmit("b1"), "one place is reserved for the restore, another for further restores")
		letPass(testTimeout)
		require.Equal(t, []types.UID{"b1"}, q.takeEnqueued())
		require.True(t, q.tryAdmit("b1"))
		require.True(t, q.tryAdmit("b2"))
	})
}

// There is one agent for each node. None observes what the others accept before a round ends.
func TestManyAgentsKeepTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, perNode, nodes, transfers = 7, 2, 5, 400
		agents := make([]*recordedAdmission, nodes)
		for i := range agents {
			agents[i] = newRecordedAdmission(limit, perNode)
		}
		all := make([]Entry, transfers)
		for i := range all {
			all[i] = newEntry(types.UID(fmt.Sprintf("%c%03d", "bbbr"[i%4], i)), i/3, fmt.Sprint(i*i%nodes))
		}
		observeAll := func(e Entry) {
			for _, agent := range agents {
				agent.Observe(e)
			}
		}
		for _, e := range all {
			observeAll(e)
		}
		done := 0
		for round := 0; done < transfers; round++ {
			require.Less(t, round, transfers, "every round finishes a transfer")
			var accepted []Entry
			for i := range all {
				if all[i].Phase == Waiting && agents[int(all[i].Node[0]-'0')].tryAdmit(all[i].UID) {
					all[i].Phase = Admitted
					accepted = append(accepted, all[i])
				}
			}
			slices.Reverse(accepted)
			for _, e := range accepted {
				observeAll(e)
			}
			preparing := slices.IndexFunc(all, func(e Entry) bool { return e.Phase == Admitted })
			require.GreaterOrEqual(t, preparing, 0, "a transfer is admitted as long as one waits")
			for _, agent := range agents {
				require.LessOrEqual(t, agent.cluster.taken, limit)
			}
			all[preparing].Phase = Uncounted
			observeAll(all[preparing])
			done++
		}
	})
}
