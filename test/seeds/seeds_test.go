package seeds

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestARecordedSeedIsKept(t *testing.T) {
	dir := t.TempDir()
	for seed := range uint64(2) {
		require.NoError(t, record(filepath.Join(dir, File), "TestA", seed+1, "2026-11-24"))
	}
	kept, err := Kept(os.DirFS(dir), "TestA")
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 2}, kept)
	require.ErrorContains(t, record(dir, "TestA", 1, ""), "record seed: open")
}

// TestRecordedSeedsRunFirst also runs the seed that testdata/seeds.txt has for it.
func TestRecordedSeedsRunFirst(t *testing.T) {
	var lock sync.Mutex
	var drawn []uint64
	t.Run("schedules", func(t *testing.T) {
		Each(t, 64, func(t *testing.T, random *rand.Rand) {
			t.Helper()
			t.Parallel()
			lock.Lock()
			defer lock.Unlock()
			drawn = append(drawn, random.Uint64())
		})
	})
	if *given != 0 {
		require.Len(t, drawn, 1)
		return
	}
	require.Len(t, drawn, 65)
	require.Equal(t, rand.New(rand.NewPCG(42, 42)).Uint64(), drawn[0])
}
