package transfer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/build"
)

// TestNextEverywhere holds every rule of the protocol against every situation that there can be.
func TestNextEverywhere(t *testing.T) {
	all := rules()
	looked := walk(Next, func(m *moment) bool {
		for _, r := range all {
			if !r.holds(m) {
				t.Errorf("broken: %s\n%s", r.says, m)
				return false
			}
		}
		return true
	})
	require.Less(t, looked, stride) // or the walk may miss some
	t.Logf("%d rules in %d situations", len(all), looked)
}

func (m *moment) String() string {
	result := "none"
	if m.Seen.Result != nil {
		result = fmt.Sprintf("%+v", *m.Seen.Result)
	}
	return fmt.Sprintf("state  %+v\nseen   %+v\nresult %s\nstep   %+v", m.State, m.Seen, result, m.Step)
}

func TestEveryRuleCatchesTheNextThatBreaksIt(t *testing.T) {
	said := map[string]bool{}
	for _, r := range rules() {
		require.False(t, said[r.says], "two rules say: %s", r.says)
		said[r.says] = true
		t.Run(r.says, func(t *testing.T) {
			require.NotNil(t, r.broken, "no broken Next shows that this rule can fail")
			caught := false
			walk(r.broken, func(m *moment) bool {
				caught = !r.holds(m)
				return !caught
			})
			require.True(t, caught, "the rule holds for a Next that breaks it")
		})
	}
}

// wrong are Nexts with one guard that is wrong, by phase.
func wrong() map[Phase]func(*State, *Seen, *Limits) {
	return map[Phase]func(*State, *Seen, *Limits){
		"":       func(_ *State, seen *Seen, _ *Limits) { seen.Mine = true },
		New:      func(s *State, _ *Seen, _ *Limits) { s.Deleting = false },
		Accepted: func(_ *State, seen *Seen, _ *Limits) { seen.Now = seen.Now.Add(-tick) }, // left < 0
		Prepared: func(_ *State, seen *Seen, _ *Limits) { seen.Slot = true },
		InProgress: func(_ *State, seen *Seen, _ *Limits) {
			if seen.Exposure.Condition == build.Lost {
				seen.Exposure.Condition = build.Running
			}
		},
		Canceling: func(_ *State, seen *Seen, _ *Limits) {
			if seen.Exposure.Condition == build.Ending {
				seen.Exposure.Condition = build.Running
			}
		},
		Completed: func(_ *State, seen *Seen, _ *Limits) {
			if seen.Exposure.Condition == build.Ending {
				seen.Exposure.Condition = build.Absent
			}
		},
		Failed:   func(s *State, _ *Seen, _ *Limits) { s.Phase = Prepared },
		Canceled: func(_ *State, seen *Seen, _ *Limits) { seen.Exposure.Condition = build.Absent },
	}
}

func TestOneWrongGuardIsCaughtInEveryPhase(t *testing.T) {
	guards, all := wrong(), rules()
	for _, phase := range append(Phases(), "") {
		t.Run("in phase "+string(phase), func(t *testing.T) {
			require.Contains(t, guards, phase)
			caught := ""
			broken := func(s State, seen Seen, lim Limits) Step {
				if s.Phase == phase {
					guards[phase](&s, &seen, &lim)
				}
				return Next(s, seen, lim)
			}
			walk(broken, func(m *moment) bool {
				for _, r := range all {
					if !r.holds(m) {
						caught = r.says
					}
				}
				return caught == ""
			})
			require.NotEmpty(t, caught, "no rule sees it")
		})
	}
}
