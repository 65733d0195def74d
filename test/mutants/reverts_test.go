package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEachRevertApplies(t *testing.T) {
	all, err := readReverts("../sim/testdata/reverts")
	require.NoError(t, err)
	for _, one := range all {
		t.Run(one.name, func(t *testing.T) {
			require.NotEmpty(t, one.title)
			require.NoError(t, one.apply(t.Context(), "../..", "--check"), "the code has changed: write the patch anew")
		})
	}
}

func TestReadRevertsRejectsADirectoryWithoutPatches(t *testing.T) {
	_, err := readReverts(t.TempDir())
	require.ErrorContains(t, err, "has no patches")
}

func TestASampleHasNoRareRevert(t *testing.T) {
	all := func() []revert { return []revert{{name: "a"}, {name: "b", rare: true}, {name: "c"}} }
	for seed := range uint64(10) {
		sample, err := selection{count: 2, seed: seed}.of(all())
		require.NoError(t, err)
		require.ElementsMatch(t, []string{"a", "c"}, []string{sample[0].name, sample[1].name})
	}
	named, err := selection{names: "b,c"}.of(all())
	require.NoError(t, err)
	require.Equal(t, []revert{{name: "b", rare: true}, {name: "c"}}, named)
	everything, err := selection{}.of(all())
	require.NoError(t, err)
	require.Len(t, everything, 3)
	_, err = selection{names: "b,d"}.of(all())
	require.ErrorContains(t, err, "b,d")
}
