package truncate_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/truncate"
)

func TestEndKeepsWholeCharacters(t *testing.T) {
	const text = "aéböcd" // 8 bytes: é and ö have two, and the mark has three
	for limit, want := range map[int]string{0: "…", 3: "…", 4: "a…", 5: "a…", 6: "aé…", 7: "aéb…", 8: text, 9: text} {
		require.Equal(t, want, truncate.End(text, limit), "%d bytes", limit)
	}
	require.Empty(t, truncate.End("", 0))
}

func TestStartKeepsWholeCharacters(t *testing.T) {
	for limit, want := range []string{"", "z", "z", "éz", "aéz", "aéz"} { // a and z have one byte, é two
		require.Equal(t, want, truncate.Start("aéz", limit), "%d bytes", limit)
	}
}

func TestMiddleKeepsBothEnds(t *testing.T) {
	for columns, want := range map[int]string{1: "…", 2: "n…", 3: "n…é", 4: "nö…é", 5: "nö…xé", 6: "nödexé", 7: "nödexé"} {
		require.Equal(t, want, truncate.Middle("nödexé", columns), "%d columns", columns)
	}
}

func TestNamesCountsThoseThatItOmits(t *testing.T) {
	for most, want := range map[int]string{1: "a and 2 more", 2: "a, b and 1 more", 3: "a, b, c", 4: "a, b, c"} {
		require.Equal(t, want, truncate.Names([]string{"a", "b", "c"}, most))
	}
	require.Empty(t, truncate.Names(nil, 1))
}
