package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachRevertApplies(t *testing.T) {
	all, err := readReverts("../sim/testdata/reverts/*.patch")
	require.NoError(t, err)
	for _, one := range all {
		t.Run(one.name, func(t *testing.T) {
			require.NotEmpty(t, one.title)
			require.NoError(t, one.apply(t.Context(), "../..", "--check"), "the code has changed: write the patch anew")
		})
	}
}

func TestEachEquivalentMutantExists(t *testing.T) {
	p := &program{root: "../..", dirs: strings.Split(changed, ","), sources: map[string]*source{}}
	require.NoError(t, p.generate(t.Context()))
}
