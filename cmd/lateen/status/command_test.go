package status

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestATerminalIsRedrawn(t *testing.T) {
	const before, after = "\x1b[H\x1b[?7l", "\x1b[J\x1b[?7h"
	for name, test := range map[string]struct {
		rows  int
		drawn string
	}{
		"completely if the terminal is high enough":    {rows: 4, drawn: "one\x1b[K\ntwo\x1b[K\nthree\x1b[K\n"},
		"with the number of omitted lines":             {rows: 3, drawn: "one\x1b[K\n… 2 more lines: enlarge the terminal, or remove --watch\x1b[K\n"},
		"in one line if the terminal has only one row": {rows: 1, drawn: "… 3 more lines: enlarge the terminal, or remove --watch\x1b[K\n"},
	} {
		drawn := redraw("one\ntwo\nthree\n", test.rows)
		require.Equal(t, before+test.drawn+after, drawn, name)
		require.Less(t, strings.Count(drawn, "\n"), max(test.rows, 2), "the terminal would scroll")
	}
	require.Zero(t, terminalRows(&bytes.Buffer{}))
}
