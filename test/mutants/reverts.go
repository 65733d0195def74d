package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// revert is a patch that takes a fix back. Before the diff it has a line that says what went wrong without the fix, and
// perhaps "Test:" with the test of the simulation that finds it, if no unit test and no random schedule does.
type revert struct {
	name     string // the commit or the defect
	title    string
	test     string   // of the simulation
	packages []string // that it changes
	patch    []byte
}

var changedFile = regexp.MustCompile(`(?m)^\+\+\+ b/(.*)/[^/]*\.go$`)

// readReverts returns the reverts in the files that a pattern matches.
func readReverts(pattern string) ([]revert, error) {
	files, err := filepath.Glob(pattern)
	if err != nil {
		return nil, fmt.Errorf("list patches: %w", err)
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no patch matches %s", pattern)
	}
	var all []revert
	for _, file := range files {
		patch, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read patch: %w", err)
		}
		header, diff, found := strings.Cut(string(patch), "\n\ndiff ")
		if !found {
			return nil, fmt.Errorf("%s: want a line that says what went wrong, then the output of git diff", file)
		}
		title, test, _ := strings.Cut(header, "\nTest: ")
		one := revert{name: strings.TrimSuffix(filepath.Base(file), ".patch"), title: title, test: cmp.Or(test, "TestSchedules"), patch: patch}
		for _, match := range changedFile.FindAllStringSubmatch(diff, -1) {
			one.packages = append(one.packages, "./"+match[1])
		}
		all = append(all, one)
	}
	return all, nil
}

// playReverts applies one revert after the other to a copy of the program, and runs the tests. It returns an error unless one fails
// each time.
func playReverts(ctx context.Context, root, pattern string) error {
	chosen, err := readReverts(pattern)
	if err != nil {
		return err
	}
	fmt.Printf("%-22s %8s  %-12s  %s\n", "reverted", "seconds", "found by", "what went wrong")
	found := 0
	for _, one := range chosen {
		began := time.Now()
		by, err := one.play(ctx, root)
		if err != nil {
			return err
		}
		if by != nothing {
			found++
		}
		fmt.Printf("%-22s %8.0f  %-12s  %s\n", one.name, time.Since(began).Seconds(), by, one.title)
	}
	fmt.Printf("%d of %d reverts were found\n", found, len(chosen))
	if found < len(chosen) {
		return errors.New("no test found a reverted fix")
	}
	return nil
}

// play applies a revert, and undoes it after the tests. It returns the tests that fail.
func (r revert) play(ctx context.Context, root string) (by string, err error) {
	if err := r.apply(ctx, root); err != nil {
		return "", err
	}
	by, err = r.find(ctx, root)
	return by, errors.Join(err, r.apply(ctx, root, "--reverse"))
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

// nothing finds a revert with which all tests pass.
const nothing = "nothing"

// find returns the first tests that fail: those of the packages that have changed, of all packages, or of the simulation.
func (r revert) find(ctx context.Context, root string) (by string, err error) {
	for _, packages := range [][]string{r.packages, {"./..."}} {
		switch output, passed := goRun(ctx, root, append([]string{"test", "-vet=off", "-timeout=3m", "-failfast"}, packages...)...); {
		case strings.Contains(output, "[build failed]"):
			return "", fmt.Errorf("compile the program without %s:\n%s", r.name, output)
		case !passed:
			return "unit tests", nil
		}
	}
	if _, passed := goRun(ctx, filepath.Join(root, "test"), "test", "-vet=off", "-timeout=20m", "-failfast", "-run=^"+r.test+"$", "./sim", "-first", "-runs=200"); !passed {
		return "simulation", nil
	}
	return nothing, nil
}
