package conformance

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// update is the flag that writes the page of results.
var update = flag.Bool("update", false, "write the page of the recorded results")

// make conformance writes the page, and so does -update, which plays nothing. Other pages name its figures.
func TestTheDocumentationShowsTheResults(t *testing.T) {
	if *update {
		require.NoError(t, writePage())
	}
	want, err := renderPage()
	require.NoError(t, err)
	have, err := os.ReadFile(resultsPage)
	require.NoError(t, err)
	require.Equal(t, string(want), string(have), "%s is not up to date; run: cd test && go test ./conformance -run Documentation -update", resultsPage)
	for _, page := range []string{"../../README.md", "../../docs/compatibility.md"} {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, agent := range []string{"lateen", "velero"} {
			report, err := reportOf(agent)
			require.NoError(t, err)
			require.Contains(t, string(text), report.Agent+" passes "+report.Passed(), page)
		}
	}
}
