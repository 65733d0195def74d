package seeds

import (
	"os"
	"path/filepath"
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
