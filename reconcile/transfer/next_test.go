package transfer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNextEverywhere verifies every rule of the protocol in every possible situation.
func TestNextEverywhere(t *testing.T) {
	all := rules()
	visited := walk(func(m *situation) bool {
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
