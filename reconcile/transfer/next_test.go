package transfer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
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
