package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/lateen-project/lateen/test/tree"
)

// directory is one whose contents are compared.
type directory string

// grow fills it with what volumes have: files of all sizes, empty and sparse ones, modes, owners, links and times.
func (d directory) grow(t *testing.T, seed uint64) {
	t.Helper()
	t.Log("seed", seed)
	_, err := tree.Fill(string(d), 1<<20, seed)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(d.path("nothing"), 0o711))
	require.NoError(t, os.Chown(d.path("d1"), 1000, 2000))
	require.NoError(t, os.Chown(d.path("d1/f1"), 1001, 2001))
	require.NoError(t, os.Chmod(d.path("d1/f1"), 0o444))
	require.NoError(t, os.Symlink("/nowhere", d.path("dangling")))
	d.sparse(t)
	d.hardLink(t)
	d.age(t)
}

// hardLink gives a file a second name. kopia restores two files, each with the content and all else that the one had.
func (d directory) hardLink(t *testing.T) {
	t.Helper()
	require.NoError(t, os.Link(d.path("d1/f1"), d.path("d2/hard")))
}

// age gives everything a time of its own in the past, but a directory that of the newest file in it: kopia restores no
// other (MaxModTime of its directory summary).
func (d directory) age(t *testing.T) {
	t.Helper()
	var paths []string
	require.NoError(t, filepath.WalkDir(string(d), func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	start := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	newest := map[string]time.Time{} // by directory
	files := map[uint64]time.Time{}  // by inode: a file may have several names
	for i, path := range slices.Backward(paths) {
		at, ok := newest[path]
		if !ok {
			inode := inodeOf(t, path)
			if at, ok = files[inode]; !ok {
				at = start.Add(time.Duration(i) * (time.Hour + time.Microsecond))
				files[inode] = at
			}
		}
		if dir := filepath.Dir(path); at.After(newest[dir]) {
			newest[dir] = at
		}
		stamp := unix.NsecToTimespec(at.UnixNano())
		require.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{stamp, stamp}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

func inodeOf(t *testing.T, path string) uint64 {
	t.Helper()
	var info unix.Stat_t
	require.NoError(t, unix.Lstat(path, &info))
	return info.Ino
}

// sparse makes a file that is mostly a hole.
func (d directory) sparse(t *testing.T) {
	t.Helper()
	const size = 1 << 20
	file, err := os.Create(d.path("sparse"))
	require.NoError(t, err)
	_, err = file.WriteAt([]byte("end"), size-3)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

func (d directory) path(name string) string { return filepath.Join(string(d), name) }

// read is what the tree has, with owners and times.
func (d directory) read(t *testing.T) map[string]string {
	t.Helper()
	found, err := tree.Read(string(d), func(info fs.FileInfo) string {
		owner := info.Sys().(*syscall.Stat_t)
		return fmt.Sprintf("%d:%d %s ", owner.Uid, owner.Gid, info.ModTime().UTC().Format(time.RFC3339Nano))
	})
	require.NoError(t, err)
	require.NotEmpty(t, found)
	return found
}
