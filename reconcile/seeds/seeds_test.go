package seeds

import (
	"math/rand/v2"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

func TestKeptSeedsRunFirst(t *testing.T) {
	kept := choose(0, []uint64{7, 8}, 2, rand.Uint64)
	require.Len(t, kept, 4)
	require.Equal(t, []uint64{7, 8}, kept[:2])
	require.NotEqual(t, kept[2], kept[3], "fresh ones")
	require.NotZero(t, kept[2])
	require.Equal(t, []uint64{5}, choose(5, []uint64{7, 8}, 2, rand.Uint64), "the one that is given is the only one")
}

func TestFreshSeedsOfACommitAreTheSame(t *testing.T) {
	seeds := func(from, test string) []uint64 { return choose(0, nil, 3, source(from, test)) }
	first, second := seeds("a", "TestA"), seeds("a", "TestA")
	require.Equal(t, first, second)
	require.NotEqual(t, first, seeds("b", "TestA"), "another commit")
	require.NotEqual(t, first, seeds("a", "TestB"), "another test")
	first, second = seeds("", "TestA"), seeds("", "TestA")
	require.NotEqual(t, first, second, "without a commit")
}

func TestKeptSeedsAreThoseOfTheTest(t *testing.T) {
	file := func(text string) fstest.MapFS { return fstest.MapFS{File: {Data: []byte(text)}} }
	kept, err := Kept(file("# why they are here\n\nTestA 1 lost an event\nTestB 2 waited for ever\nTestA 18446744073709551615 again\n"), "TestA")
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 1<<64 - 1}, kept)
	kept, err = Kept(fstest.MapFS{}, "TestA")
	require.NoError(t, err)
	require.Empty(t, kept)
	for text, says := range map[string]string{
		"TestA 1\n":                "line 1: want a test, a seed and the failure",
		"# a\nTestA one was bad\n": "line 2: strconv.ParseUint",
	} {
		_, err := Kept(file(text), "TestA")
		require.ErrorContains(t, err, says)
	}
}

// TestTheSameSeedIsTheSameRun also runs the seed that testdata/seeds.txt has for it.
func TestTheSameSeedIsTheSameRun(t *testing.T) {
	var first []uint64
	Each(t, 1, func(_ *testing.T, random *rand.Rand) { first = append(first, random.Uint64()) })
	if *given != 0 {
		require.Len(t, first, 1)
		return
	}
	require.Len(t, first, 2)
	require.Equal(t, rand.New(rand.NewPCG(42, 42)).Uint64(), first[0])
}
