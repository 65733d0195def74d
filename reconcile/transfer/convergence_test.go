package transfer

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	maxMoves    = 80
	maxDuration = 8 * time.Hour // three hanging movers, or four tries of 30 minutes each, plus a grace period and some steps
)

// injection is a fault that occurs after a number of moves.
type injection struct {
	fault string
	after int
}

// run moves a simulated transfer until it is clean, and injects the faults. It calls hit with the phase at each
// fault.
func run(c *simulation, injections []injection, hit func(fault string, phase Phase)) error {
	all := faults()
	last := 0
	for _, b := range injections {
		last = max(last, b.after)
	}
	for moves := range maxMoves {
		for _, b := range injections {
			if b.after == moves && !c.deleted {
				hit(b.fault, c.state.Phase)
				all[b.fault](c)
			}
		}
		if c.clean() && moves >= last {
			return c.check()
		}
		if c.clean() {
			continue
		}
		if err := c.advance(); err != nil {
			return fmt.Errorf("move %d: %w", moves, err)
		}
	}
	return fmt.Errorf("not clean after %d moves", maxMoves)
}

// check verifies the invariants of every final situation.
func (c *simulation) check() error {
	switch {
	case c.clock.Sub(now()) > maxDuration:
		return fmt.Errorf("took %s", c.clock.Sub(now()))
	case c.movers-c.uncounted > DefaultLimits().Retries+1:
		return fmt.Errorf("took %d movers", c.movers)
	case c.state.Phase.Terminal() && c.state.CompletedAt.IsZero():
		return fmt.Errorf("%s without a completion time", c.state.Phase)
	case c.state.Phase == Completed && c.state.Outcome.SnapshotID == "":
		return fmt.Errorf("completed without a snapshot")
	case c.state.Phase == Failed && c.state.Message == "":
		return fmt.Errorf("failed without a message")
	}
	return nil
}

// expectedPhases returns the expected terminal phase of each behaviour without faults.
func expectedPhases() map[behaviour]Phase {
	return map[behaviour]Phase{
		succeeds: Completed, fails: Failed, leavesNoResult: Failed, cannotRun: Failed, staysPending: Failed, isAlwaysEvicted: Failed, stalls: Failed,
		restores: Completed, cannotRebind: Failed,
	}
}

func TestTransferConvergesWithoutFaults(t *testing.T) {
	for m, phase := range expectedPhases() {
		t.Run("a mover that "+string(m), func(t *testing.T) {
			c := newSimulation(m)
			require.NoError(t, run(c, nil, nil))
			require.Equal(t, phase, c.state.Phase, c.state.Message)
		})
	}
}

// TestTransferConvergesUnderEveryPairOfFaults injects every pair of faults at every pair of moves, for every behaviour of movers.
// The transfer must become terminal and clean.
func TestTransferConvergesUnderEveryPairOfFaults(t *testing.T) {
	hits := map[string]map[Phase]int{}
	for fault := range faults() {
		hits[fault] = map[Phase]int{}
	}
	hit := func(fault string, phase Phase) { hits[fault][phase]++ }
	runs := 0
	for _, m := range []behaviour{succeeds, fails, leavesNoResult, ignoresCancel, runsUntilCanceled, neverReportsStart, stalls, cannotRun, staysPending, isAlwaysEvicted, restores, cannotRebind} {
		for _, injections := range faultPairs(!slices.Contains([]behaviour{ignoresCancel, runsUntilCanceled, neverReportsStart}, m)) {
			c := newSimulation(m)
			require.NoError(t, run(c, injections, hit), "mover %s, %+v: %+v, mover %+v", m, injections, c.state, c.mover)
			requireExpectedPhase(t, m, injections, c)
			runs++
		}
	}
	t.Logf("%d runs", runs)
	for fault, phases := range hits {
		for _, phase := range Phases() {
			require.NotZero(t, phases[phase], "%s never hit in phase %q", fault, phase)
		}
	}
}

// faultPairs returns all pairs of faults and moves. If the mover never ends on its own, one fault of the pair stops it.
func faultPairs(ends bool) [][]injection {
	const window = 24 // moves; the longest run without faults has fewer
	var all [][]injection
	for first := range faults() {
		for second := range faults() {
			for i := range window {
				for j := i; j < window; j++ {
					injections := []injection{{first, i}, {second, j}}
					if stopped(injections) || ends {
						all = append(all, injections)
					}
				}
			}
		}
	}
	return all
}

func stopped(injections []injection) bool {
	return includes(injections, "cancel") || includes(injections, "delete")
}

func includes(injections []injection, fault string) bool {
	return slices.ContainsFunc(injections, func(b injection) bool { return b.fault == fault })
}

// requireExpectedPhase verifies the final situation of a run: each fault has its required consequence and no other.
func requireExpectedPhase(t *testing.T, m behaviour, injections []injection, c *simulation) {
	t.Helper()
	may := []Phase{expectedPhases()[m]}
	if includes(injections, "source pod vanishes") {
		may = append(may, Failed)
	}
	if stopped(injections) {
		may = append(may, Canceled)
	}
	if includes(injections, "delete") && c.deleted {
		may = append(may, New) // it was deleted before it was accepted
	}
	require.Contains(t, may, c.state.Phase, "mover %s, %+v: %s", m, injections, c.state.Message)
}
