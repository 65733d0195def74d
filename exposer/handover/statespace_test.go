package handover

import "testing"

// simulatedSteps bounds the steps of one call. simulatedCalls bounds the calls from any state to the end.
const simulatedSteps, simulatedCalls = 16, 8

// walkStorages calls visit with each reachable step for a ready snapshot. Agents crash after any step. The transfer
// ends at any time. The caches lag without a bound, but all by the same time. The controllers act in any order. It
// stops when visit returns false.
func walkStorages(visit func(before, after simulatedRun, step Step) bool) {
	start := simulatedRun{storage: simulatedStorage{simulatedPairs: simulatedPairs{
		original: simulatedObject{exists: true, protected: true, ready: true}, content: simulatedObject{exists: true, protected: true, handle: true},
	}}}.resync()
	visited := map[simulatedRun]bool{start: true}
	for queue := []simulatedRun{start}; len(queue) > 0; queue = queue[1:] {
		next := queue[0].disturbances()
		at := queue[0]
		for range simulatedSteps {
			step, _ := at.step()
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
func (s simulatedRun) disturbances() []simulatedRun {
	ended := s
	ended.cleaningUp = true
	next := []simulatedRun{s.resync(), ended.restart()}
	for _, storage := range s.storage.controllers() {
		one := s
		one.storage = storage
		next = append(next, one)
	}
	return next
}

// runToEnd runs the state machines without disturbance: caches catch up and controllers act between calls. It returns the
// final state and the last step.
func (s simulatedRun) runToEnd() (simulatedRun, Step) {
	step := AwaitSnapshot
	for range simulatedCalls {
		s = s.resync()
		for range simulatedSteps {
			if step, _ = s.step(); step.stops() {
				break
			}
			s = s.execute(step)
		}
		s.storage = s.storage.settled()
		if step == Finished {
			break
		}
	}
	return s, step
}

// storageRules are invariants of each step, stated without the state machines.
func storageRules() map[string]func(before, after simulatedRun, step Step) bool {
	return map[string]func(before, after simulatedRun, step Step) bool{
		"no step of a hand-over can lose the handle": func(before, after simulatedRun, _ Step) bool {
			return before.cleaningUp || !before.storage.keepsHandle() || after.storage.keepsHandle()
		},
		"an undisturbed hand-over does not fail, however stale the caches are": func(before, _ simulatedRun, step Step) bool {
			return before.cleaningUp || step != Fail && step != NameConflict
		},
		"a finished hand-over leaves only the backup pair with the handle": func(before, after simulatedRun, step Step) bool {
			end := after.storage.settled()
			return before.cleaningUp || step != Finished ||
				end.backup.exists && end.backupContent.exists && !end.original.exists && !end.content.exists
		},
		"the handle is never deleted twice": func(_, after simulatedRun, _ Step) bool { return after.storage.settled().deleted <= 1 },
		"a finished clean-up leaves at most a content for the sweep, which deletes the handle": func(before, after simulatedRun, step Step) bool {
			if !before.cleaningUp || step != Finished {
				return true
			}
			alone := simulatedStorage{simulatedPairs: simulatedPairs{backupContent: after.storage.backupContent}, deleted: after.storage.deleted}
			swept, _ := after.runToEnd()
			return after.storage == alone && swept.storage == simulatedStorage{deleted: 1}
		},
		"every run that continues finishes": func(_, after simulatedRun, _ Step) bool {
			_, step := after.runToEnd()
			return step == Finished
		},
	}
}

func TestNoInterleavingLosesASnapshot(t *testing.T) {
	walkStorages(func(before, after simulatedRun, step Step) bool {
		for name, holds := range storageRules() {
			if !holds(before, after, step) {
				t.Errorf("violated: %s\nstep   %s\nbefore %+v\nafter  %+v", name, step, before, after)
				return false
			}
		}
		return true
	})
}
