package handover

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// toyRungs bounds the steps of one call. toyCalls bounds the calls from any state to the end.
const toyRungs, toyCalls = 16, 8

// walkStorages calls visit with each reachable step for a ready snapshot. Agents crash after any step. The transfer
// ends at any time. The caches lag without a bound, but all by the same time. The controllers act in any order. It
// stops when visit returns false.
func walkStorages(l ladders, visit func(before, after toyClimb, rung Step) bool) {
	start := toyClimb{storage: toyStorage{toyPairs: toyPairs{
		original: toySnapshot{there: true, guarded: true, ready: true}, content: toyContent{there: true, guarded: true, handle: true},
	}}}.fresh()
	known := map[toyClimb]bool{start: true}
	for queue := []toyClimb{start}; len(queue) > 0; queue = queue[1:] {
		next := queue[0].elsewhere()
		at := queue[0]
		for range toyRungs {
			rung, _ := l.rung(at)
			after := at.take(rung)
			if !visit(at, after, rung) {
				return
			}
			if rung.stops() {
				break
			}
			next = append(next, after.again())
			at = after
		}
		for _, one := range next {
			if !known[one] {
				known[one] = true
				queue = append(queue, one)
			}
		}
	}
}

// elsewhere returns the states after one action of another actor.
func (c toyClimb) elsewhere() []toyClimb {
	ended := c
	ended.undoing = true
	next := []toyClimb{c.fresh(), ended.again()}
	for _, storage := range c.storage.controllers() {
		one := c
		one.storage = storage
		next = append(next, one)
	}
	return next
}

// ends runs a state machine without disturbance: caches catch up and controllers act between calls. It returns the
// final state and the last step.
func (l ladders) ends(c toyClimb) (toyClimb, Step) {
	rung := AwaitSnapshot
	for range toyCalls {
		c = c.fresh()
		for range toyRungs {
			if rung, _ = l.rung(c); rung.stops() {
				break
			}
			c = c.take(rung)
		}
		c.storage = c.storage.settled()
		if rung == Finished {
			break
		}
	}
	return c, rung
}

// storageRule is an invariant of each step, stated without the state machines, and a broken state machine that
// violates it.
type storageRule struct {
	holds  func(l ladders, before, after toyClimb, rung Step) bool
	broken func(*ladders)
}

func storageRules() map[string]storageRule {
	return map[string]storageRule{
		"no rung of a hand-over puts the handle at risk": {
			func(_ ladders, before, after toyClimb, _ Step) bool {
				return before.undoing || !before.storage.safe() || after.storage.safe()
			},
			func(l *ladders) { l.next = instead(l.next, RetainOriginal, DeleteOriginal) },
		},
		"a hand-over that nobody disturbs is not given up, however old the caches are": {
			func(_ ladders, before, _ toyClimb, rung Step) bool {
				return before.undoing || rung != Fail && rung != NameConflict
			},
			func(l *ladders) {
				l.next = instead(l.next, Reobserve, Fail)
			},
		},
		"a hand-over that is finished leaves the backup pair alone with the handle": {
			func(_ ladders, before, after toyClimb, rung Step) bool {
				end := after.storage.settled()
				return before.undoing || rung != Finished ||
					end.backup.there && end.copied.there && !end.original.there && !end.content.there
			},
			func(l *ladders) { l.next = instead(l.next, DeleteOriginal, Finished) },
		},
		"the handle is never deleted twice": {
			func(_ ladders, _, after toyClimb, _ Step) bool { return after.storage.settled().deleted <= 1 },
			func(l *ladders) { l.undo = instead(l.undo, RetainOriginal, DeleteBackup) },
		},
		"a clean-up that is finished leaves nothing but a content for the sweep, and then the handle is deleted": {
			func(l ladders, before, after toyClimb, rung Step) bool {
				if !before.undoing || rung != Finished {
					return true
				}
				alone := toyStorage{toyPairs: toyPairs{copied: after.storage.copied}, deleted: after.storage.deleted}
				swept, _ := l.ends(after)
				return after.storage == alone && swept.storage == toyStorage{deleted: 1}
			},
			func(l *ladders) { l.undo = instead(l.undo, Reobserve, Finished) },
		},
		"whoever goes on comes to the end": {
			func(l ladders, _, after toyClimb, _ Step) bool {
				_, rung := l.ends(after)
				return rung == Finished
			},
			func(l *ladders) { l.undo = instead(l.undo, DeleteOriginalContent, AwaitSnapshot) },
		},
	}
}

// instead returns a state machine that replaces one step with another.
func instead(ladder func(State) (Step, string), rung, taken Step) func(State) (Step, string) {
	return func(h State) (Step, string) {
		next, description := ladder(h)
		if next == rung {
			return taken, description
		}
		return next, description
	}
}

func rightLadders() ladders { return ladders{State.Next, State.NextCleanup} }

func TestNoAgentAndNoCacheCanLoseASnapshot(t *testing.T) {
	rules, looked := storageRules(), 0
	walkStorages(rightLadders(), func(before, after toyClimb, rung Step) bool {
		looked++
		for says, rule := range rules {
			if !rule.holds(rightLadders(), before, after, rung) {
				t.Errorf("broken: %s\nrung   %s\nbefore %+v\nafter  %+v", says, rung, before, after)
				return false
			}
		}
		return true
	})
	t.Logf("%d rules for %d rungs", len(rules), looked)
}

func TestEveryRuleOfSnapshotsCatchesTheLadderThatBreaksIt(t *testing.T) {
	for says, rule := range storageRules() {
		t.Run(says, func(t *testing.T) {
			l, caught := rightLadders(), false
			rule.broken(&l)
			walkStorages(l, func(before, after toyClimb, rung Step) bool {
				caught = !rule.holds(l, before, after, rung)
				return !caught
			})
			require.True(t, caught, "the rule holds for ladders that break it")
		})
	}
}
