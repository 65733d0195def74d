package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestASabotagedActFails shows that each act observes what it says. The demo without sabotage is a stage of CI.
func TestASabotagedActFails(t *testing.T) {
	t.Parallel()
	for i, sabotage := range []string{"agent", "class", "maintenance", "kill", "restore"} {
		t.Run(sabotage, func(t *testing.T) {
			t.Parallel()
			require.ErrorContains(t, run(t.Context(), t.TempDir(), false, sabotage), fmt.Sprintf("act %d failed: ", i+1))
		})
	}
}
