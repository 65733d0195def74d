package transfer

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the diagram into the documentation")

// edge is one transition of Next between two phases, with the reasons of the writes.
type edge struct {
	From, To Phase
	Reasons  []string
}

// edges walks every situation and collects the writes of Next. An expose or a rebind that cannot succeed finishes
// the transfer inside the effect. Its edge is the one of FailExpose or FailRebind.
func edges() []edge {
	found := map[[2]Phase]map[Reason]bool{}
	walk(func(m *situation) {
		from := m.State.Phase
		add := func(step Step) {
			pair := [2]Phase{from, step.State.Phase}
			if found[pair] == nil {
				found[pair] = map[Reason]bool{}
			}
			found[pair][step.Reason] = true
		}
		switch m.Step.Action {
		case Write:
			add(m.Step)
		case Expose:
			add(FailExpose(m.State, m.Observed, ""))
		case AbandonRebind:
			add(FailRebind(m.State, m.Observed, ""))
		case Wait, Rebind, DeleteMover, CleanUp:
		}
	})
	var all []edge
	for pair, reasons := range found {
		each := edge{From: pair[0], To: pair[1]}
		for reason := range reasons {
			each.Reasons = append(each.Reasons, string(reason))
		}
		slices.Sort(each.Reasons)
		all = append(all, each)
	}
	slices.SortFunc(all, func(a, b edge) int {
		if a.From != b.From {
			return slices.Index(Phases(), a.From) - slices.Index(Phases(), b.From)
		}
		return strings.Compare(string(a.To), string(b.To))
	})
	return all
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
	for _, each := range edges() {
		fmt.Fprintf(&diagram, "    %s --> %s: %s\n", each.From, each.To, strings.Join(each.Reasons, "<br/>"))
	}
	want := before + begin + diagram.String() + end + after
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(have), "run: make pictures")
}
