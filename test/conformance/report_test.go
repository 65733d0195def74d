package conformance

import (
	"flag"
	"testing"

	"github.com/stretchr/testify/require"
)

// update is the flag that writes the generated parts of the documentation.
var update = flag.Bool("update", false, "write the recorded results into the documentation")

// The documentation shows the recorded results, and every case. make conformance writes them; so does -update, which plays
// nothing.
func TestTheDocumentationShowsTheResults(t *testing.T) {
	all, err := Cases()
	require.NoError(t, err)
	if *update {
		require.NoError(t, writePages(all))
	}
	generated, err := parts(all)
	require.NoError(t, err)
	for _, want := range generated {
		_, text, _, err := want.cut()
		require.NoError(t, err)
		require.Equal(t, want.text, text, "%s is not up to date; run: cd test && go test ./conformance -run Documentation -update", want.page)
	}
}
