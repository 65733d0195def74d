package transfer

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files")

// edge is one transition of Next between two phases, with the reasons of the writes. The documentation draws the
// state machine from the golden file.
type edge struct {
	From    Phase    `json:"from"`
	To      Phase    `json:"to"`
	Reasons []Reason `json:"reasons"`
}

// edges walks every situation and collects the writes of Next. An expose or a rebind that cannot succeed finishes
// the transfer inside the effect. Its edge is the one of FailExpose or FailRebind.
func edges() []edge {
	found := map[[2]Phase]map[Reason]bool{}
	walk(Next, func(m *situation) bool {
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
		return true
	})
	var all []edge
	for pair, reasons := range found {
		each := edge{From: pair[0], To: pair[1]}
		for reason := range reasons {
			each.Reasons = append(each.Reasons, reason)
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

// TestEdgesMatchThePicture compares the golden file, the source of the picture, with the transitions of Next.
func TestEdgesMatchThePicture(t *testing.T) {
	path := filepath.Join("testdata", "edges.json")
	have, err := json.MarshalIndent(edges(), "", "  ")
	require.NoError(t, err)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, append(have, '\n'), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(want)), string(have), "run: make pictures")
}
