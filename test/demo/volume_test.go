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
