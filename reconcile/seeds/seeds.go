// Package seeds runs random tests with recorded seeds that failed once, and with fresh ones. Only tests use it.
package seeds

import (
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
)

// File contains the seeds that failed once for a test of the package. Each line has the test's name, the seed, and
// what was wrong. Empty lines and lines that begin with # are ignored.
const File = "testdata/seeds.txt"

var given = flag.Uint64("seed", 0, "run random tests with this seed only; 0: with those of "+File+" and with fresh ones") //nolint:gochecknoglobals // as flags of tests are

// Source is the environment variable from whose value the fresh seeds are derived, if it is set. CI sets it to the
// commit: the next commit plays other schedules, and a run of CI can be repeated.
const Source = "SEEDS_FROM"

// Each runs a test once for each recorded seed, and then with fresh ones. The flag -seed runs only that one. A
// failure logs its seed.
func Each(t *testing.T, fresh int, test func(t *testing.T, random *rand.Rand)) {
	t.Helper()
	kept, err := Kept(os.DirFS("."), t.Name())
	if err != nil {
		t.Fatal(err)
	}
	for _, seed := range choose(*given, kept, fresh, source(os.Getenv(Source), t.Name())) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("-seed %d reproduces it; add the seed to %s", seed, File)
				}
			})
			test(t, rand.New(rand.NewPCG(seed, seed)))
		})
	}
}

// choose returns the given seed if there is one, else the recorded ones and that many fresh ones.
func choose(given uint64, kept []uint64, fresh int, random func() uint64) []uint64 {
	if given != 0 {
		return []uint64{given}
	}
	for range fresh {
		kept = append(kept, 1+random()>>1)
	}
	return kept
}

// source returns a source of fresh seeds of a test. It is random if nothing is given.
func source(from, test string) func() uint64 {
	if from == "" {
		return rand.Uint64
	}
	return rand.NewChaCha8(sha256.Sum256([]byte(from + " " + test))).Uint64
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
