package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
)

// dataset says what files a volume gets. The same dataset is the same bytes.
type dataset struct {
	files   int    // how many
	largest int64  // bytes of the largest file
	seed    uint64 // of the contents; kopia stores equal contents once, so each act has its own
}

// sizes has a few large files and many small ones, as volumes do: the size falls with the rank by a power
// law (Zipf's, exponent 1.5), and the last file is empty.
func (d dataset) sizes() []int64 {
	sizes := make([]int64, d.files)
	for i := range d.files - 1 {
		sizes[i] = int64(float64(d.largest) / math.Pow(float64(i+1), 1.5))
	}
	return sizes
}

// bytes is the sum of all files.
func (d dataset) bytes() int64 {
	var sum int64
	for _, size := range d.sizes() {
		sum += size
	}
	return sum
}

// fill writes the files below dir, a hundred to a directory.
func (d dataset) fill(dir string) error {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], d.seed)
	random := rand.NewChaCha8(seed)
	for i, size := range d.sizes() {
		parent := filepath.Join(dir, fmt.Sprintf("d%02d", i/100))
		if err := os.MkdirAll(parent, 0o755); err != nil {
			return fmt.Errorf("fill volume: %w", err)
		}
		contents := make([]byte, size)
		if _, err := random.Read(contents); err != nil {
			return fmt.Errorf("fill volume: %w", err)
		}
		if err := os.WriteFile(filepath.Join(parent, fmt.Sprintf("f%04d", i)), contents, 0o644); err != nil {
			return fmt.Errorf("fill volume: %w", err)
		}
	}
	return nil
}

// digest is the SHA-256 of a tree: of the names, modes, owners and bytes of all that it has.
func digest(dir string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		owner, ok := info.Sys().(*syscall.Stat_t)
		if !ok {
			return fmt.Errorf("stat %s: the system does not tell owners", path)
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(sum, "%q %s %d %d\n", name, info.Mode(), owner.Uid, owner.Gid)
		if !info.Mode().IsRegular() {
			return nil
		}
		return addFile(sum, path)
	})
	if err != nil {
		return "", fmt.Errorf("digest %s: %w", dir, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func addFile(sum io.Writer, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	_, err = io.Copy(sum, file)
	return err
}
