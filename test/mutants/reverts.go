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
	"slices"
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

// errNotFound means that all tests pass without a fix.
var errNotFound = errors.New("no test found a reverted fix")

// playReverts applies one revert after the other to a copy of the program, and runs the tests. It returns errNotFound if none fails.
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
	fmt.Printf("%-22s %8s  %-12s  %s\n", "reverted", "seconds", "found by", "what went wrong")
	found := 0
	for _, one := range chosen {
		began := time.Now()
		how, playErr := one.play(ctx, root, runs)
		if playErr != nil {
			return playErr
		}
		if how == survived || how == notCompiled {
			err = errNotFound
		} else {
			found++
		}
		fmt.Printf("%-22s %8.0f  %-12s  %s\n", one.name, time.Since(began).Seconds(), how, one.title)
	}
	fmt.Printf("%d of %d reverts were found\n", found, len(chosen))
	return err
}

// play applies a revert, and undoes it after the tests.
func (r revert) play(ctx context.Context, root string, runs int) (how string, err error) {
	if err := r.apply(ctx, root); err != nil {
		return "", err
	}
	how, err = find(ctx, root, r.packages, "-run=^"+r.test+"$", runs)
	return how, errors.Join(err, r.apply(ctx, root, "--reverse"))
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
