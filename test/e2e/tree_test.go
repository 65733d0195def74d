package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tree is a directory whose contents are compared.
type tree string

// grow fills it with what volumes have: files of all sizes, empty and sparse ones, modes, owners, links and times.
func (d tree) grow(t *testing.T, seed uint64) {
	t.Helper()
	const files = 200
	t.Log("seed", seed)
	random, bytes := rand.New(rand.NewPCG(seed, seed)), rand.NewChaCha8([32]byte{byte(seed)})
	for i := range files {
		content := make([]byte, 1<<random.IntN(16))
		_, _ = bytes.Read(content) // never fails
		d.write(t, fmt.Sprintf("d%d/f%d", i%7, i), content, fs.FileMode(0o600|random.IntN(0o100)))
	}
	d.write(t, "empty", nil, 0o640)
	require.NoError(t, os.Mkdir(d.path("nothing"), 0o711))
	require.NoError(t, os.Chown(d.path("d1"), 1000, 2000))
	require.NoError(t, os.Chown(d.path("d1/f1"), 1001, 2001))
	require.NoError(t, os.Chmod(d.path("d1/f1"), 0o444))
	require.NoError(t, os.Symlink("d1/f1", d.path("link")))
	require.NoError(t, os.Symlink("/nowhere", d.path("dangling")))
	d.sparse(t)
	d.hardLink(t)
	d.age(t)
}

// hardLink gives a file a second name. kopia restores two files, each with the content and all else that the one had.
func (d tree) hardLink(t *testing.T) {
	t.Helper()
	require.NoError(t, os.Link(d.path("d1/f1"), d.path("d2/hard")))
}

// age gives everything a time of its own in the past, but a directory that of the newest file in it: kopia restores no
// other (MaxModTime of its directory summary).
func (d tree) age(t *testing.T) {
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
func (d tree) sparse(t *testing.T) {
	t.Helper()
	const size = 1 << 20
	file, err := os.Create(d.path("sparse"))
	require.NoError(t, err)
	_, err = file.WriteAt([]byte("end"), size-3)
	require.NoError(t, err)
	require.NoError(t, file.Close())
}

func (d tree) path(name string) string { return filepath.Join(string(d), name) }

func (d tree) write(t *testing.T, name string, content []byte, mode fs.FileMode) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(d.path(name)), 0o755))
	require.NoError(t, os.WriteFile(d.path(name), content, mode))
	require.NoError(t, os.Chmod(d.path(name), mode))
}

// read is what the tree has, by name: type, mode, owner, time, and bytes or where a link leads.
func (d tree) read(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(string(d), func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == string(d) {
			return err
		}
		name, err := filepath.Rel(string(d), path)
		require.NoError(t, err)
		info, err := entry.Info()
		require.NoError(t, err)
		owner, ok := info.Sys().(*syscall.Stat_t)
		require.True(t, ok)
		found[name] = fmt.Sprintf("%s %d:%d %s %s", info.Mode(), owner.Uid, owner.Gid,
			info.ModTime().UTC().Format(time.RFC3339Nano), contents(t, path, info))
		return nil
	}))
	require.NotEmpty(t, found)
	return found
}

func contents(t *testing.T, path string, info fs.FileInfo) string {
	t.Helper()
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(path)
		require.NoError(t, err)
		return to
	case info.IsDir():
		return ""
	}
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}
