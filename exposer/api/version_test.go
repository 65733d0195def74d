package api

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIsNewer(t *testing.T) {
	for name, test := range map[string]struct {
		a, b  string
		newer bool
	}{
		"a later version":             {a: "12", b: "9", newer: true},
		"an earlier one":              {a: "9", b: "12"},
		"the same":                    {a: "9", b: "9"},
		"one that cannot be compared": {a: "x", b: "9"},
	} {
		require.Equal(t, test.newer, IsNewer(test.a, test.b), name)
	}
}
