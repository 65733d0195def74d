package transfer

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReplacementMoverOfAPodRunsAlone(t *testing.T) {
	for _, phase := range append(Phases(), "") {
		works := phase == InProgress || phase == Canceling
		for _, restarts := range [][2]int{{0, 0}, {0, 1}, {1, 0}, {2, 1}} {
			must := State{Phase: Prepared, Restarts: restarts[0]}.MustNotRunBeside(State{Phase: phase, Restarts: restarts[1]})
			require.Equal(t, works && restarts != [2]int{0, 0}, must, "beside one that is %s, restarts %v", phase, restarts)
		}
	}
}
