// Command mutants changes a copy of the program and counts how many of the changes the tests find. It generates mutants,
// which change a single line, or it reverts fixes.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// changed are the directories whose packages are changed.
const changed = "reconcile,exposer,informers,deploy,metrics,cmd/lateen/agent,cmd/lateen/config,cmd/lateen/startup"

func main() {
	root := flag.String("root", "..", "directory of the program")
	packages := flag.String("packages", changed, "directories whose packages are changed")
	least := flag.Float64("least", 95, "percentage of the mutants that must be found")
	reverts := flag.String("reverts", "", "pattern of patches, each of which reverts a fix: they are played instead of mutants")
	flag.Parse()
	work := func(ctx context.Context, root string) error {
		return measure(ctx, root, strings.Split(*packages, ","), *least)
	}
	if *reverts != "" {
		work = func(ctx context.Context, root string) error { return playReverts(ctx, root, *reverts) }
	}
	if err := inCopy(context.Background(), *root, work); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// inCopy calls a function with a copy of the program, and removes the copy.
func inCopy(ctx context.Context, source string, work func(ctx context.Context, root string) error) error {
	root, err := os.MkdirTemp("", "lateen-mutants-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer os.RemoveAll(root)
	archive := exec.CommandContext(ctx, "sh", "-c", `git -C "$0" ls-files -z -- "$(git -C "$0" rev-parse --show-toplevel)" | tar -C "$0" --null -cf - -T - | tar -xf - -C "$1"`, source, root)
	if output, err := archive.CombinedOutput(); err != nil {
		return fmt.Errorf("copy the program: %w\n%s", err, output)
	}
	return work(ctx, root)
}

// goRun runs the go command in a directory. It returns the output, and whether the command succeeded.
func goRun(ctx context.Context, dir string, args ...string) (output string, succeeded bool) {
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = dir
	text, err := command.CombinedOutput()
	return string(text), err == nil
}
