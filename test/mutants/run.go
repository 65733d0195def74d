package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// suite is a test binary of a package.
type suite struct {
	name    string // directory, relative to the root of the copy
	binary  string
	reaches map[int]bool
	took    time.Duration // without a mutant
}

// compile builds the test binary of a package; nil if it has no tests.
func compile(ctx context.Context, root, module, dir string) (*suite, error) {
	tests, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
	if err != nil || len(tests) == 0 {
		return nil, err
	}
	one := &suite{name: dir, binary: filepath.Join(root, "bin", strings.ReplaceAll(dir, "/", "-")+".test")}
	within, err := filepath.Rel(module, dir)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", dir, err)
	}
	build := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-trimpath", "-o", one.binary, "./"+within)
	build.Dir, build.Env = filepath.Join(root, module), append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build the tests of %s: %w\n%s", dir, err, output)
	}
	return one, nil
}

// run runs a suite with one active mutant, 0 for none, and reports whether its tests pass.
func (s *suite) run(ctx context.Context, root string, number int, limit time.Duration, record string, args ...string) (passed bool, output string, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	test := exec.CommandContext(ctx, s.binary, append([]string{"-test.failfast", "-test.skip=^TestLayers$"}, args...)...) // the copy has an import that no layer allows
	test.Dir = filepath.Join(root, s.name)
	test.Env = append(os.Environ(), "MUTANT="+strconv.Itoa(number), "MUTANTS_REACHED="+record)
	var out bytes.Buffer
	test.Stdout, test.Stderr = &out, &out
	failed := (*exec.ExitError)(nil)
	switch err := test.Run(); {
	case err == nil:
		return true, out.String(), nil
	case errors.As(err, &failed) || ctx.Err() != nil: // a mutant may also hang
		return false, out.String(), nil
	default:
		return false, "", fmt.Errorf("run the tests of %s: %w", s.name, err)
	}
}

// observe runs a suite without a mutant and records which mutants it reaches.
func (s *suite) observe(ctx context.Context, root string, args ...string) error {
	record := s.binary + ".reached"
	start := time.Now()
	const limit = 20 * time.Minute
	passed, output, err := s.run(ctx, root, 0, limit, record, args...)
	if err != nil {
		return err
	}
	if !passed {
		return fmt.Errorf("the tests of %s fail without a mutant:\n%s", s.name, output) //nolint:err113 // for people
	}
	s.took, s.reaches = time.Since(start), map[int]bool{}
	data, err := os.ReadFile(record)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read what %s reaches: %w", s.name, err)
	}
	for number := range strings.FieldsSeq(string(data)) {
		value, err := strconv.Atoi(number)
		if err != nil {
			return fmt.Errorf("read what %s reaches: %w", s.name, err)
		}
		s.reaches[value] = true
	}
	return nil
}

// limit bounds a run with a mutant: a mutant that makes tests hang is killed.
func (s *suite) limit() time.Duration {
	const factor, least = 10, time.Minute
	return max(least, factor*s.took)
}
