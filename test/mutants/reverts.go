package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// revert is a patch that takes a fix back. Before the diff it has a line that says what went wrong without the fix, and
// perhaps "Rare:" with the reason why no schedule is expected to find it soon, or "Test:" with the test of the simulation
// that finds it.
type revert struct {
	name  string // the commit or the defect
	title string
	rare  bool
	test  string
	patch []byte
}

// readReverts returns all reverts in a directory.
func readReverts(dir string) ([]revert, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.patch"))
	if err != nil {
		return nil, fmt.Errorf("list patches: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no patches", dir)
	}
	var all []revert
	for _, file := range files {
		patch, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read patch: %w", err)
		}
		header, _, found := strings.Cut(string(patch), "\ndiff ")
		if !found {
			return nil, fmt.Errorf("%s: want a line that says what went wrong, then the output of git diff", file)
		}
		title, _, _ := strings.Cut(header, "\n")
		test := randomTest
		if named := namedTest.FindStringSubmatch(header); named != nil {
			test = named[1]
		}
		all = append(all, revert{strings.TrimSuffix(filepath.Base(file), ".patch"), title, strings.Contains(header, "\nRare:"), test, patch})
	}
	return all, nil
}

// selection says which reverts are played.
type selection struct {
	names string // separated by commas; empty: a sample
	count int    // of the sample, which has no rare one; 0: all
	seed  uint64 // of the sample
}

func (s selection) of(all []revert) ([]revert, error) {
	if s.names != "" {
		names := strings.Split(s.names, ",")
		chosen := slices.DeleteFunc(all, func(one revert) bool { return !slices.Contains(names, one.name) })
		if len(chosen) != len(names) {
			return nil, fmt.Errorf("not all of %s have a patch", s.names)
		}
		return chosen, nil
	}
	if s.count == 0 {
		return all, nil
	}
	often := slices.DeleteFunc(all, func(one revert) bool { return one.rare })
	random := rand.New(rand.NewPCG(s.seed, s.seed)) //nolint:gosec // a seed repeats it
	random.Shuffle(len(often), func(i, j int) { often[i], often[j] = often[j], often[i] })
	return often[:min(s.count, len(often))], nil
}

// errNotFound means that the simulation passes without a fix.
var errNotFound = errors.New("no schedule found a reverted fix")

// playReverts applies one revert after the other to a copy of the program, and plays schedules until one fails. It
// returns errNotFound if none fails although the revert is not rare.
func playReverts(ctx context.Context, root, dir string, selected selection, runs int) error {
	all, err := readReverts(dir)
	if err != nil {
		return err
	}
	chosen, err := selected.of(all)
	if err != nil {
		return err
	}
	fmt.Printf("%-10s %10s %8s %20s  %s\n", "reverted", "schedules", "seconds", "seed", "what went wrong")
	found := 0
	for _, one := range chosen {
		schedules, seconds, seed, playErr := one.play(ctx, root, runs)
		if playErr != nil {
			return playErr
		}
		if seed == "" && !one.rare {
			err = errNotFound
		}
		if seed == "" {
			seed = "not found"
		} else {
			found++
		}
		fmt.Printf("%-10s %10s %8.0f %20s  %s\n", one.name, schedules, seconds, seed, one.title)
	}
	fmt.Printf("%d of %d reverts were found\n", found, len(chosen))
	return err
}

// randomTest is the test that plays random schedules.
const randomTest = "TestSchedules"

var (
	namedTest  = regexp.MustCompile(`\nTest: (\w+)`)
	failedSeed = regexp.MustCompile(`--- FAIL: ` + randomTest + `/seed_(\d+)`)
	played     = regexp.MustCompile(`(\d+) schedules with`)
)

// play applies a revert, plays schedules until one fails, and undoes the revert. The seed is empty if none failed.
func (r revert) play(ctx context.Context, root string, runs int) (schedules string, seconds float64, seed string, err error) {
	if err := r.apply(ctx, root); err != nil {
		return "", 0, "", err
	}
	simulation, err := compile(ctx, root, "test", "test/sim")
	if err != nil {
		return "", 0, "", err
	}
	start := time.Now()
	const limit = 2 * time.Hour
	passed, output, err := simulation.run(ctx, root, 0, limit, "", "-test.v", "-test.timeout", limit.String(), "-test.run", "^"+r.test+"$",
		"-first", "-runs", strconv.Itoa(runs))
	if err != nil {
		return "", 0, "", err
	}
	seconds = time.Since(start).Seconds()
	if count := played.FindStringSubmatch(output); count != nil {
		schedules = count[1]
	}
	if failed := failedSeed.FindStringSubmatch(output); failed != nil {
		seed = failed[1]
	} else if !passed && r.test != randomTest && strings.Contains(output, "--- FAIL: "+r.test) {
		seed = r.test
	} else if !passed {
		return "", 0, "", fmt.Errorf("the simulation without %s failed, but no schedule did:\n%s", r.name, output)
	}
	return schedules, seconds, seed, r.apply(ctx, root, "--reverse")
}

// apply applies the patch to the program in a directory.
func (r revert) apply(ctx context.Context, root string, args ...string) error {
	apply := exec.CommandContext(ctx, "git", append([]string{"apply"}, args...)...)
	apply.Dir, apply.Stdin = root, strings.NewReader(string(r.patch))
	if output, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("apply the patch that reverts %s: %w\n%s", r.name, err, output)
	}
	return nil
}
