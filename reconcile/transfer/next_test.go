package transfer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/objects"
)

// TestNextEverywhere verifies every rule of the protocol in every possible situation.
func TestNextEverywhere(t *testing.T) {
	all := rules()
	visited := walk(Next, func(m *situation) bool {
		for _, r := range all {
			if !r.holds(m) {
				t.Errorf("violated: %s\n%s", r.name, m)
				return false
			}
		}
		return true
	})
	require.Less(t, visited, stride) // otherwise the walk may miss some
	t.Logf("%d rules in %d situations", len(all), visited)
}

func (m *situation) String() string {
	result := "none"
	if m.Observed.Result != nil {
		result = fmt.Sprintf("%+v", *m.Observed.Result)
	}
	return fmt.Sprintf("state  %+v\nobserved %+v\nresult %s\nstep   %+v", m.State, m.Observed, result, m.Step)
}

func TestEveryRuleDetectsItsBrokenNext(t *testing.T) {
	reported := map[string]bool{}
	for _, r := range rules() {
		require.False(t, reported[r.name], "two rules are named %s", r.name)
		reported[r.name] = true
		t.Run(r.name, func(t *testing.T) {
			require.NotNil(t, r.broken, "no broken Next shows that this rule can fail")
			caught := false
			walk(r.broken, func(m *situation) bool {
				caught = !r.holds(m)
				return !caught
			})
			require.True(t, caught, "the rule holds for a Next that breaks it")
		})
	}
}

// disabledGuards returns, for each phase, a change of the input that disables one guard of Next.
func disabledGuards() map[Phase]func(*State, *Observed, *Limits) {
	return map[Phase]func(*State, *Observed, *Limits){
		New:      func(s *State, _ *Observed, _ *Limits) { s.Deleting = false },
		Accepted: func(_ *State, observed *Observed, _ *Limits) { observed.Now = observed.Now.Add(-tick) }, // left < 0
		Prepared: func(_ *State, observed *Observed, _ *Limits) { observed.HasSlot = true },
		InProgress: func(_ *State, observed *Observed, _ *Limits) {
			if observed.Exposure.Condition == objects.Lost {
				observed.Exposure.Condition = objects.Running
			}
		},
		Canceling: func(_ *State, observed *Observed, _ *Limits) {
			if observed.Exposure.Condition == objects.Terminating {
				observed.Exposure.Condition = objects.Running
			}
		},
		Completed: func(_ *State, observed *Observed, _ *Limits) {
			if observed.Exposure.Condition == objects.Terminating {
				observed.Exposure.Condition = objects.Absent
			}
		},
		Failed:   func(s *State, _ *Observed, _ *Limits) { s.Phase = Prepared },
		Canceled: func(_ *State, observed *Observed, _ *Limits) { observed.Exposure.Condition = objects.Absent },
	}
}

func TestADisabledGuardIsDetectedInEveryPhase(t *testing.T) {
	guards, all := disabledGuards(), rules()
	for _, phase := range Phases() {
		t.Run("in phase "+string(phase), func(t *testing.T) {
			require.Contains(t, guards, phase)
			caught := ""
			broken := func(s State, observed Observed, lim Limits) Step {
				if s.Phase == phase {
					guards[phase](&s, &observed, &lim)
				}
				return Next(s, observed, lim)
			}
			walk(broken, func(m *situation) bool {
				for _, r := range all {
					if !r.holds(m) {
						caught = r.name
					}
				}
				return caught == ""
			})
			require.NotEmpty(t, caught, "no rule detects it")
		})
	}
}
