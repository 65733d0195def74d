package transfer

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the diagram into the documentation")

// edges walks every situation and collects the reasons of the writes of Next, by the phases before and after. An expose or
// a rebind that cannot succeed finishes the transfer inside the effect. Its edge is the one of FailExpose or FailRebind.
func edges() map[[2]Phase]map[string]bool {
	found := map[[2]Phase]map[string]bool{}
	walk(func(m *situation) {
		var step Step
		switch m.Step.Action {
		case Write:
			step = m.Step
		case Expose:
			step = FailExpose(m.State, m.Observed, "")
		case AbandonRebind:
			step = FailRebind(m.State, m.Observed, "")
		case Wait, Rebind, DeleteMover, CleanUp:
			return
		}
		pair := [2]Phase{m.State.Phase, step.State.Phase}
		if found[pair] == nil {
			found[pair] = map[string]bool{}
		}
		found[pair][string(step.Reason)] = true
	})
	return found
}

// TestEdgesMatchTheDiagram compares the state diagram of the documentation with the transitions of Next.
func TestEdgesMatchTheDiagram(t *testing.T) {
	const page, begin, end = "../../docs/architecture.md", "```mermaid\nstateDiagram-v2\n", "```"
	have, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, begins := strings.Cut(string(have), begin)
	_, after, ends := strings.Cut(rest, end)
	require.True(t, begins && ends, "%s has no state diagram", page)
	var diagram strings.Builder
	found := edges()
	for _, from := range Phases() {
		for _, to := range slices.Sorted(slices.Values(Phases())) {
			if reasons := slices.Sorted(maps.Keys(found[[2]Phase{from, to}])); len(reasons) > 0 {
				fmt.Fprintf(&diagram, "    %s --> %s: %s\n", from, to, strings.Join(reasons, "<br/>"))
			}
		}
	}
	want := before + begin + diagram.String() + end + after
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(have), "run: make pictures")
}
