package transfer

import (
	"fmt"
	"testing"
)

// TestNextEverywhere verifies every rule of the protocol in every possible situation.
func TestNextEverywhere(t *testing.T) {
	all := rules()
	walk(func(m *situation) {
		for _, r := range all {
			if !r.holds(m) {
				t.Fatalf("violated: %s\n%s", r.name, m)
			}
		}
	})
}

func (s *situation) String() string {
	result := "none"
	if s.Observed.Result != nil {
		result = fmt.Sprintf("%+v", *s.Observed.Result)
	}
	return fmt.Sprintf("state  %+v\nobserved %+v\nresult %s\nstep   %+v", s.State, s.Observed, result, s.Step)
}
