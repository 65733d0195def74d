package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
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
