package main

import (
	"context"
	"errors"
	"fmt"
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

// errNotFound means that the simulation passes without a fix.
var errNotFound = errors.New("no schedule found a reverted fix")

// playReverts applies one revert after the other to a copy of the program, and plays schedules until one fails. It
// returns errNotFound if none fails although the revert is not rare.
func playReverts(ctx context.Context, root, dir, names string, runs int) error {
	chosen, err := readReverts(dir)
	if err != nil {
		return err
	}
	if wanted := strings.Split(names, ","); names != "" {
		chosen = slices.DeleteFunc(chosen, func(one revert) bool { return !slices.Contains(wanted, one.name) })
		if len(chosen) != len(wanted) {
			return fmt.Errorf("not all of %s have a patch", names)
		}
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
	failedSeed = regexp.MustCompile(`--- FAIL: ` + randomTest + `/\w+/seed_(\d+)`)
	played     = regexp.MustCompile(`(\d+) schedules with`)
)

// play applies a revert, plays schedules until one fails, and undoes the revert. The seed is empty if none failed.
func (r revert) play(ctx context.Context, root string, runs int) (schedules string, seconds float64, seed string, err error) {
	if err := r.apply(ctx, root); err != nil {
		return "", 0, "", err
	}
	start := time.Now()
	output, failure := goTest(ctx, filepath.Join(root, "test"), "-v", "-timeout=2h", "-failfast", "-run", "^"+r.test+"$", "./sim",
		"-first", "-runs", strconv.Itoa(runs))
	seconds = time.Since(start).Seconds()
	if count := played.FindStringSubmatch(output); count != nil {
		schedules = count[1]
	}
	if failed := failedSeed.FindStringSubmatch(output); failed != nil {
		seed = failed[1]
	} else if failure != nil && r.test != randomTest && strings.Contains(output, "--- FAIL: "+r.test) {
		seed = r.test
	} else if failure != nil {
		return "", 0, "", fmt.Errorf("run the simulation without %s: %w, but no schedule failed:\n%s", r.name, failure, output)
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
