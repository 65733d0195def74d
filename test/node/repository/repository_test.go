package repository

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestARepositoryRestoresWhatItSaved(t *testing.T) {
	repository, volume, restored := Repository{Dir: t.TempDir()}, t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(volume, "d/empty"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(volume, "d/a"), []byte("abc"), 0o640))
	require.NoError(t, os.WriteFile(filepath.Join(volume, "b"), []byte("abc"), 0o400))
	require.NoError(t, os.Symlink("d/a", filepath.Join(volume, "link")))
	snapshot, bytes, err := repository.Save(volume)
	require.NoError(t, err)
	require.EqualValues(t, 6, bytes)
	contents, err := names(repository.path("contents", ""))
	require.NoError(t, err)
	require.Len(t, contents, 1, "equal contents are kept once")

	require.NoError(t, os.WriteFile(repository.path("contents", "unused"), nil, 0o600))
	deleted, err := repository.Maintain()
	require.NoError(t, err)
	require.Equal(t, 1, deleted)
	require.NoFileExists(t, repository.path("contents", "unused"))
	bytes, err = repository.Restore(snapshot, restored)
	require.NoError(t, err)
	require.EqualValues(t, 6, bytes)
	again, _, err := repository.Save(restored)
	require.NoError(t, err)
	require.Equal(t, snapshot, again, "names, modes, times, links and contents")

	require.NoError(t, os.WriteFile(repository.path("contents", contents[0]), []byte("abd"), 0o600))
	_, err = repository.Restore(snapshot, t.TempDir())
	require.ErrorContains(t, err, "is damaged")
	require.NoError(t, os.WriteFile(repository.path("snapshots", snapshot), []byte("[]"), 0o600))
	_, err = repository.Maintain()
	require.ErrorContains(t, err, "is damaged")
}
