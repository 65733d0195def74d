package main

import (
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestADatasetIsTheSameBytesEachTime(t *testing.T) {
	data := dataset{files: 250, largest: 1 << 20, seed: 7}
	first, second := t.TempDir(), t.TempDir()
	require.NoError(t, data.fill(first))
	require.NoError(t, data.fill(second))
	require.Equal(t, digests(t, first), digests(t, second))

	other := t.TempDir()
	require.NoError(t, dataset{files: 250, largest: 1 << 20, seed: 8}.fill(other))
	require.NotEqual(t, digests(t, first), digests(t, other))
}

func TestADatasetHasFilesOfAllSizesAndKnowsTheirSum(t *testing.T) {
	data := dataset{files: 250, largest: 1 << 20, seed: 7}
	dir := t.TempDir()
	require.NoError(t, data.fill(dir))
	var files, empty, small int
	var sum, largest int64
	require.NoError(t, filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		files++
		sum += info.Size()
		largest = max(largest, info.Size())
		switch {
		case info.Size() == 0:
			empty++
		case info.Size() < 1000:
			small++
		}
		return err
	}))
	require.Equal(t, 250, files)
	require.Equal(t, data.bytes(), sum)
	require.EqualValues(t, 1<<20, largest)
	require.Equal(t, 1, empty)
	require.Greater(t, small, 100)
}

// digests are the files' contents by name.
func digests(t *testing.T, dir string) map[string][32]byte {
	t.Helper()
	found := map[string][32]byte{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		contents, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		found[name] = sha256.Sum256(contents)
		return err
	}))
	return found
}

func TestADigestTellsTreesApart(t *testing.T) {
	sums := map[string]string{}
	for name, spoil := range map[string]func(dir string) error{
		"as it was":   func(string) error { return nil },
		"other bytes": func(dir string) error { return os.WriteFile(filepath.Join(dir, "d00", "f0001"), []byte("x"), 0o600) },
		"other mode":  func(dir string) error { return os.Chmod(filepath.Join(dir, "d00", "f0001"), 0o600) },
		"one more":    func(dir string) error { return os.Mkdir(filepath.Join(dir, "more"), 0o755) },
		"other owner": func(dir string) error { return os.Lchown(filepath.Join(dir, "d00", "f0001"), 12, 34) },
	} {
		dir := t.TempDir()
		require.NoError(t, dataset{files: 10, largest: 1000, seed: 1}.fill(dir))
		require.NoError(t, spoil(dir))
		sum, err := digest(dir)
		require.NoError(t, err)
		require.NotContains(t, sums, sum, name)
		sums[sum] = name
	}
}
