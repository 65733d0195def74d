package conformance

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The documentation shows the recorded results. make conformance writes them.
func TestTheDocumentationShowsTheResults(t *testing.T) {
	all, err := Cases()
	require.NoError(t, err)
	generated, err := pages(all)
	require.NoError(t, err)
	for path, want := range generated {
		_, part, _, err := cutPage(path)
		require.NoError(t, err)
		require.Equal(t, want, part, "%s: call writePages, as make conformance does", path)
	}
}
