// Package seeds runs random tests with recorded seeds that failed once, and with others. The others are the same in each
// run, so that the same tree always passes or always fails, unless the environment asks for fresh ones. Only tests use it.
package seeds

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// File contains the seeds that failed once for a test of the package. Each line has the test's name, the seed, and
// what was wrong. Empty lines and lines that begin with # are ignored.
const File = "testdata/seeds.txt"

var given = flag.Uint64("seed", 0, "run random tests with this seed only; 0: with those of "+File+" and with others")

// Source is the environment variable from whose value fresh seeds are derived, such as a date. With fresh seeds, one that
// fails is recorded in File.
const Source = "SEEDS_FROM"

// Each runs a test once for each recorded seed, and then with count others, even if the test calls t.Parallel. The flag -seed
// runs only that one. A failure logs its seed.
func Each(t *testing.T, count int, test func(t *testing.T, random *rand.Rand)) {
	t.Helper()
	kept, err := Kept(os.DirFS("."), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	name, from := t.Name(), os.Getenv(Source)
	run := func(t *testing.T, seed uint64) {
		t.Helper()
		t.Cleanup(func() {
			if !t.Failed() {
				return
			}
			t.Logf("-seed %d reproduces it", seed)
			if from != "" && *given == 0 && !slices.Contains(kept, seed) {
				if err := record(File, name, seed, from); err != nil {
					t.Error(err)
				}
			}
		})
		test(t, rand.New(rand.NewPCG(seed, seed)))
	}
	recorded, others := kept, []uint64(nil)
	random := rand.NewChaCha8(sha256.Sum256([]byte(from + " " + name))) // the same seeds for the same text
	for range count {
		others = append(others, 1+random.Uint64()>>1)
	}
	if *given != 0 {
		recorded, others = nil, []uint64{*given}
	}
	for group, seeds := range [][]uint64{recorded, others} {
		t.Run([]string{"recorded", "others"}[group], func(t *testing.T) {
			for _, seed := range seeds {
				t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { run(t, seed) })
			}
		})
	}
}

// record appends a seed to a file. Whoever finds the cause replaces the text.
func record(path, test string, seed uint64, from string) error {
	const directory, file = 0o755, 0o644
	if err := os.MkdirAll(filepath.Dir(path), directory); err != nil {
		return fmt.Errorf("record seed: %w", err)
	}
	kept, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, file)
	if err != nil {
		return fmt.Errorf("record seed: %w", err)
	}
	_, err = fmt.Fprintf(kept, "%s %d failed with %s=%s; the cause is not known yet\n", test, seed, Source, from)
	if err = errors.Join(err, kept.Close()); err != nil {
		return fmt.Errorf("record seed: %w", err)
	}
	return nil
}

// Kept returns the recorded seeds of a test from File in the directory of a package. A missing file returns none.
func Kept(dir fs.FS, test string) (seeds []uint64, err error) {
	text, err := fs.ReadFile(dir, File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read seeds: %w", err)
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		const least = 3
		if len(fields) < least {
			return nil, fmt.Errorf("read %s, line %d: want a test, a seed and the failure", File, number)
		}
		seed, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read %s, line %d: %w", File, number, err)
		}
		if fields[0] == test {
			seeds = append(seeds, seed)
		}
	}
	return seeds, nil
}
