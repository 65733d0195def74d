package handover

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// simulatedSteps bounds the steps of one call. simulatedCalls bounds the calls from any state to the end.
const simulatedSteps, simulatedCalls = 16, 8

// walkStorages calls visit with each reachable step for a ready snapshot. Agents crash after any step. The transfer
// ends at any time. The caches lag without a bound, but all by the same time. The controllers act in any order. It
// stops when visit returns false.
func walkStorages(l machines, visit func(before, after simulatedRun, step Step) bool) {
	start := simulatedRun{storage: simulatedStorage{simulatedPairs: simulatedPairs{
		original: simulatedSnapshot{exists: true, protected: true, ready: true}, content: simulatedContent{exists: true, protected: true, handle: true},
	}}}.resync()
	visited := map[simulatedRun]bool{start: true}
	for queue := []simulatedRun{start}; len(queue) > 0; queue = queue[1:] {
		next := queue[0].disturbances()
		at := queue[0]
		for range simulatedSteps {
			step, _ := l.step(at)
			after := at.execute(step)
			if !visit(at, after, step) {
				return
			}
			if step.stops() {
				break
			}
			next = append(next, after.restart())
			at = after
		}
		for _, one := range next {
			if !visited[one] {
				visited[one] = true
				queue = append(queue, one)
			}
		}
	}
}

// disturbances returns the states after one action of another actor.
func (c simulatedRun) disturbances() []simulatedRun {
	ended := c
	ended.cleaningUp = true
	next := []simulatedRun{c.resync(), ended.restart()}
	for _, storage := range c.storage.controllers() {
		one := c
		one.storage = storage
		next = append(next, one)
	}
	return next
}

// runToEnd runs a state machine without disturbance: caches catch up and controllers act between calls. It returns the
// final state and the last step.
func (l machines) runToEnd(c simulatedRun) (simulatedRun, Step) {
	step := AwaitSnapshot
	for range simulatedCalls {
		c = c.resync()
		for range simulatedSteps {
			if step, _ = l.step(c); step.stops() {
				break
			}
			c = c.execute(step)
		}
		c.storage = c.storage.settled()
		if step == Finished {
			break
		}
	}
	return c, step
}

// storageRule is an invariant of each step, stated without the state machines, and a broken state machine that
// violates it.
type storageRule struct {
	holds  func(l machines, before, after simulatedRun, step Step) bool
	broken func(*machines)
}

func storageRules() map[string]storageRule {
	return map[string]storageRule{
		"no step of a hand-over can lose the handle": {
			func(_ machines, before, after simulatedRun, _ Step) bool {
				return before.cleaningUp || !before.storage.keepsHandle() || after.storage.keepsHandle()
			},
			func(l *machines) { l.next = instead(l.next, RetainOriginal, DeleteOriginal) },
		},
		"an undisturbed hand-over does not fail, however stale the caches are": {
			func(_ machines, before, _ simulatedRun, step Step) bool {
				return before.cleaningUp || step != Fail && step != NameConflict
			},
			func(l *machines) {
				l.next = instead(l.next, Reobserve, Fail)
			},
		},
		"a finished hand-over leaves only the backup pair with the handle": {
			func(_ machines, before, after simulatedRun, step Step) bool {
				end := after.storage.settled()
				return before.cleaningUp || step != Finished ||
					end.backup.exists && end.backupContent.exists && !end.original.exists && !end.content.exists
			},
			func(l *machines) { l.next = instead(l.next, DeleteOriginal, Finished) },
		},
		"the handle is never deleted twice": {
			func(_ machines, _, after simulatedRun, _ Step) bool { return after.storage.settled().deleted <= 1 },
			func(l *machines) { l.cleanup = instead(l.cleanup, RetainOriginal, DeleteBackup) },
		},
		"a finished clean-up leaves at most a content for the sweep, which deletes the handle": {
			func(l machines, before, after simulatedRun, step Step) bool {
				if !before.cleaningUp || step != Finished {
					return true
				}
				alone := simulatedStorage{simulatedPairs: simulatedPairs{backupContent: after.storage.backupContent}, deleted: after.storage.deleted}
				swept, _ := l.runToEnd(after)
				return after.storage == alone && swept.storage == simulatedStorage{deleted: 1}
			},
			func(l *machines) { l.cleanup = instead(l.cleanup, Reobserve, Finished) },
		},
		"every run that continues finishes": {
			func(l machines, _, after simulatedRun, _ Step) bool {
				_, step := l.runToEnd(after)
				return step == Finished
			},
			func(l *machines) { l.cleanup = instead(l.cleanup, DeleteOriginalContent, AwaitSnapshot) },
		},
	}
}

// instead returns a state machine that replaces one step with another.
func instead(machine func(State) (Step, string), step, replacement Step) func(State) (Step, string) {
	return func(h State) (Step, string) {
		next, description := machine(h)
		if next == step {
			return replacement, description
		}
		return next, description
	}
}

func correctMachines() machines { return machines{State.Next, State.NextCleanup} }

func TestNoInterleavingLosesASnapshot(t *testing.T) {
	rules, checked := storageRules(), 0
	walkStorages(correctMachines(), func(before, after simulatedRun, step Step) bool {
		checked++
		for name, rule := range rules {
			if !rule.holds(correctMachines(), before, after, step) {
				t.Errorf("violated: %s\nstep   %s\nbefore %+v\nafter  %+v", name, step, before, after)
				return false
			}
		}
		return true
	})
	t.Logf("%d rules for %d steps", len(rules), checked)
}

func TestEveryStorageRuleCatchesTheStateMachineThatBreaksIt(t *testing.T) {
	for name, rule := range storageRules() {
		t.Run(name, func(t *testing.T) {
			l, caught := correctMachines(), false
			rule.broken(&l)
			walkStorages(l, func(before, after simulatedRun, step Step) bool {
				caught = !rule.holds(l, before, after, step)
				return !caught
			})
			require.True(t, caught, "the rule holds for state machines that break it")
		})
	}
}
