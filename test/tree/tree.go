// Package tree fills directories with what volumes have, and reads them to compare them.
package tree

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// Fill writes files of all sizes, an empty one, one of size bytes, directories and a link into a directory. It returns the bytes
// of all files.
func Fill(dir string, size int, seed uint64) (total int64, err error) {
	const files, largest = 200, 16
	random, bytes := rand.New(rand.NewPCG(seed, seed)), rand.NewChaCha8([32]byte{byte(seed)}) //nolint:gosec // the same bytes in each run
	write := func(name string, size int, mode fs.FileMode) {
		content := make([]byte, size)
		_, _ = bytes.Read(content) // never fails
		path := filepath.Join(dir, name)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o755)
		}
		if err == nil {
			err = os.WriteFile(path, content, mode)
		}
		total += int64(size)
	}
	for i := range files {
		write(fmt.Sprintf("d%d/f%d", i%7, i), 1<<random.IntN(largest), fs.FileMode(0o600|random.IntN(0o100))) //nolint:gosec // 6 bits
	}
	write("empty", 0, 0o640)
	write("large", size, 0o600)
	if err == nil {
		err = os.Symlink("d1/f1", filepath.Join(dir, "link"))
	}
	return total, err
}

// Read returns what a directory has, by name: type, mode, more details if there are any, and the hash of the bytes or the target of a link.
func Read(dir string, details func(fs.FileInfo) string) (map[string]string, error) {
	found := map[string]string{}
	dir, err := filepath.EvalSymlinks(dir) // a walk does not follow one that it begins with
	if err != nil {
		return nil, err
	}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		content := ""
		switch {
		case info.Mode().IsRegular():
			var bytes []byte
			bytes, err = os.ReadFile(path)
			content = fmt.Sprintf("%x", sha256.Sum256(bytes))
		case info.Mode()&fs.ModeSymlink != 0:
			content, err = os.Readlink(path)
		}
		found[path[len(dir):]] = info.Mode().String() + " " + details(info) + content
		return err
	})
	return found, err
}
