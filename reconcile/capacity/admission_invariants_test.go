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
		q := newQueue(4, 0)
		backups := numbered(100)
		q.noteAll(backups...)
		for _, uid := range backups {
			require.Equal(t, uid < "b0004", q.ask(uid))
		}
		q.Observe(newEntry("r", 100, ""))
		require.False(t, q.ask("r"), "all places are taken")
		q.becomes("b0000", Admitted)
		require.Empty(t, q.heard())
		q.becomes("b0000", Uncounted)
		require.Equal(t, []types.UID{"r"}, q.heard(), "the first place is the restore's, though it came last")
		require.True(t, q.ask("r"))
		q.becomes("b0001", Uncounted)
		require.Equal(t, []types.UID{"b0004"}, q.heard(), "and the next is a backup's again")
	})
}

func TestOneNodesHundredBackupsDoNotIdleTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(6, 2)
		backups := numbered(100)
		for age, uid := range backups {
			q.Observe(newEntry(uid, age, "busy"))
		}
		for age, uid := range []types.UID{"x", "y", "z"} {
			q.Observe(newEntry(uid, 100+age, "idle-"+string(uid)))
		}
		var admitted []types.UID
		for _, uid := range append(backups, "x", "y", "z") {
			if q.ask(uid) {
				admitted = append(admitted, uid)
			}
		}
		require.Equal(t, []types.UID{"b0000", "b0001", "x", "y", "z"}, admitted)
		q.becomes("x", Uncounted)
		require.Empty(t, q.heard(), "a place elsewhere is none of a node that has its share")
		q.becomes("b0000", Uncounted)
		require.Equal(t, []types.UID{"b0002"}, q.heard())
	})
}

func TestARestoreOfANodeIsNotStarvedByItsBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(10, 1)
		for age, uid := range numbered(100) {
			q.Observe(newEntry(uid, age, "n1"))
		}
		require.True(t, q.ask("b0000"))
		require.False(t, q.ask("b0001"))
		q.Observe(newEntry("r", 100, "n1"))
		require.False(t, q.ask("r"))
		q.becomes("b0000", Uncounted)
		require.Equal(t, []types.UID{"r"}, q.heard())
	})
}

func TestATransferThatNobodyTakesHoldsNoPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(1, 0)
		q.noteAll("lost", "b1")
		require.False(t, q.ask("b1"), "the older one may come")
		letPass(testPatience - 1)
		require.Empty(t, q.heard())
		letPass(1)
		require.Equal(t, []types.UID{"b1"}, q.heard())
		require.True(t, q.ask("b1"))
		q.becomes("b1", Admitted)

		changed := newEntry("lost", 0, "")
		changed.Version = "2"
		q.Observe(changed)
		q.Observe(newEntry("b2", 2, ""))
		require.False(t, q.ask("b2"))
		q.becomes("b1", Uncounted)
		require.Empty(t, q.heard(), "it has changed, so it has a claim again")
		require.True(t, q.ask("lost"))
	})
}

func TestARestoreThatNobodyTakesReservesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newQueue(2, 0)
		q.noteAll("r", "b1", "b2")
		require.False(t, q.ask("b1"), "one place is the restore's, and another is left free for restores")
		letPass(testPatience)
		require.Equal(t, []types.UID{"b1"}, q.heard())
		require.True(t, q.ask("b1"))
		require.True(t, q.ask("b2"))
	})
}

// There is one agent for each node. None observes what the others accept before a round ends.
func TestManyAgentsKeepTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, perNode, nodes, transfers = 7, 2, 5, 400
		agents := make([]*queue, nodes)
		for i := range agents {
			agents[i] = newQueue(limit, perNode)
		}
		all := make([]Entry, transfers)
		for i := range all {
			all[i] = newEntry(types.UID(fmt.Sprintf("%c%03d", "bbbr"[i%4], i)), i/3, fmt.Sprint(i*i%nodes))
		}
		tell := func(e Entry) {
			for _, agent := range agents {
				agent.Observe(e)
			}
		}
		for _, e := range all {
			tell(e)
		}
		done := 0
		for round := 0; done < transfers; round++ {
			require.Less(t, round, transfers, "every round brings something to its end")
			var accepted []Entry
			for i := range all {
				if all[i].Phase == Waiting && agents[int(all[i].Node[0]-'0')].ask(all[i].UID) {
					all[i].Phase = Admitted
					accepted = append(accepted, all[i])
				}
			}
			slices.Reverse(accepted)
			for _, e := range accepted {
				tell(e)
			}
			preparing := slices.IndexFunc(all, func(e Entry) bool { return e.Phase == Admitted })
			require.GreaterOrEqual(t, preparing, 0, "somebody goes as long as somebody waits")
			for _, agent := range agents {
				require.LessOrEqual(t, agent.cluster.taken, limit)
			}
			all[preparing].Phase = Uncounted
			tell(all[preparing])
			done++
		}
	})
}
