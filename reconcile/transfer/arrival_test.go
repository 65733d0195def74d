package transfer

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	mostMoves = 80
	longest   = 8 * time.Hour // three hanging movers, or four tries of 30 minutes each, plus a grace period and some steps
)

// blow is a fault that occurs after a number of moves.
type blow struct {
	fault string
	after int
}

// run moves a simulated transfer until it is clean, and injects the faults. It calls hit with the phase at each
// fault.
func run(c *toy, blows []blow, hit func(fault string, phase Phase)) error {
	all := faults()
	last := 0
	for _, b := range blows {
		last = max(last, b.after)
	}
	for moves := range mostMoves {
		for _, b := range blows {
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
		if err := c.move(); err != nil {
			return fmt.Errorf("move %d: %w", moves, err)
		}
	}
	return fmt.Errorf("not clean after %d moves", mostMoves)
}

// check verifies the invariants of every final situation.
func (c *toy) check() error {
	switch {
	case c.clock.Sub(now()) > longest:
		return fmt.Errorf("took %s", c.clock.Sub(now()))
	case c.movers-c.unseen > DefaultLimits().Retries+1:
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

// arrives returns the expected terminal phase of each mood without faults.
func arrives() map[mood]Phase {
	return map[mood]Phase{
		works: Completed, fails: Failed, leavesJunk: Failed, cannotRun: Failed, neverRuns: Failed, keepsDying: Failed, hangs: Failed,
		restores: Completed, cannotDeliver: Failed,
	}
}

func TestTransferArrivesWhenNobodyInterferes(t *testing.T) {
	for m, phase := range arrives() {
		t.Run("a mover that "+string(m), func(t *testing.T) {
			c := newToy(m)
			require.NoError(t, run(c, nil, nil))
			require.Equal(t, phase, c.state.Phase, c.state.Message)
		})
	}
}

// TestTransferArrivesWhateverHappens injects every pair of faults at every pair of moves, for every mood of mover.
// The transfer must become terminal and clean.
func TestTransferArrivesWhateverHappens(t *testing.T) {
	hits := map[string]map[Phase]int{}
	for fault := range faults() {
		hits[fault] = map[Phase]int{}
	}
	hit := func(fault string, phase Phase) { hits[fault][phase]++ }
	runs := 0
	for _, m := range []mood{works, fails, leavesJunk, deaf, slow, mute, hangs, cannotRun, neverRuns, keepsDying, restores, cannotDeliver} {
		for _, blows := range pairs(!slices.Contains([]mood{deaf, slow, mute}, m)) {
			c := newToy(m)
			require.NoError(t, run(c, blows, hit), "mover %s, %+v: %+v, mover %+v", m, blows, c.state, c.mover)
			expect(t, m, blows, c)
			runs++
		}
	}
	t.Logf("%d runs", runs)
	for fault, phases := range hits {
		for _, phase := range append(Phases(), "") {
			if phase != New { // resources of a running cluster never have phase New
				require.NotZero(t, phases[phase], "%s never hit in phase %q", fault, phase)
			}
		}
	}
}

// pairs returns all pairs of faults and moves. If the mover never ends on its own, one fault of the pair stops it.
func pairs(ends bool) [][]blow {
	const window = 24 // moves; the longest run without faults has fewer
	var all [][]blow
	for first := range faults() {
		for second := range faults() {
			for i := range window {
				for j := i; j < window; j++ {
					blows := []blow{{first, i}, {second, j}}
					if stopped(blows) || ends {
						all = append(all, blows)
					}
				}
			}
		}
	}
	return all
}

func stopped(blows []blow) bool { return suffered(blows, "cancel") || suffered(blows, "delete") }

func suffered(blows []blow, fault string) bool {
	return slices.ContainsFunc(blows, func(b blow) bool { return b.fault == fault })
}

// expect verifies the final situation of a run: each fault has its required consequence and no other.
func expect(t *testing.T, m mood, blows []blow, c *toy) {
	t.Helper()
	may := []Phase{arrives()[m]}
	if suffered(blows, "source pod vanishes") {
		may = append(may, Failed)
	}
	if stopped(blows) {
		may = append(may, Canceled)
	}
	if suffered(blows, "delete") && c.deleted {
		may = append(may, "") // it was deleted before it was accepted
	}
	require.Contains(t, may, c.state.Phase, "mover %s, %+v: %s", m, blows, c.state.Message)
}
