// Command mutants changes a copy of the program and counts how many of the changes the tests find. It generates mutants,
// which change a single line, or it reverts fixes.
package main

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/lateen-project/lateen"

func main() {
	count := flag.Int("count", 100, "mutants")
	seed := flag.Uint64("seed", 0, "chooses the mutants; 0: random")
	runs := flag.Int("runs", 200, "schedules of the simulation for each mutant that the unit tests do not find")
	root := flag.String("root", "..", "directory of the program")
	packages := flag.String("packages", "reconcile,exposer,informers,deploy,metrics,cmd/lateen/agent,cmd/lateen/config", "directories whose packages are changed")
	reverts := flag.String("reverts", "", "directory of patches, each of which reverts a fix: the simulation plays each of them instead of mutants")
	names := flag.String("names", "", "names of the patches, separated by commas; default: a sample of count, or all if count is 0")
	flag.Parse()
	if *seed == 0 {
		*seed = 1 + rand.Uint64N(1<<63)
	}
	fmt.Printf("seed %d\n", *seed)
	work := func(ctx context.Context, root string) error {
		return measure(ctx, root, strings.Split(*packages, ","), *seed, *count, *runs)
	}
	if *reverts != "" {
		work = func(ctx context.Context, root string) error {
			return playReverts(ctx, root, *reverts, selection{*names, *count, *seed}, *runs)
		}
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

// measure mutates a copy of the program and runs its tests. One copy has all mutants at once, and the environment
// selects one: so it is compiled only once.
func measure(ctx context.Context, root string, packages []string, seed uint64, count, runs int) error {
	mutants, err := mutate(ctx, root, packages, seed, count)
	if err != nil {
		return err
	}
	suites, err := build(ctx, root)
	if err != nil {
		return err
	}
	simulation, err := compile(ctx, root, "test", "test/sim")
	if err != nil {
		return err
	}
	if err := simulation.observe(ctx, root, schedules(runs)...); err != nil { // or a slow machine would count as a failure
		return err
	}
	report := &report{}
	for _, one := range mutants {
		if report.total() == count {
			break
		}
		how, err := kill(ctx, root, one, suites, simulation, runs)
		if err != nil {
			return err
		}
		report.add(one, how)
	}
	report.print()
	return nil
}

// mutate writes mutants into the copy, more than are wanted: tests do not reach all of them.
func mutate(ctx context.Context, root string, packages []string, seed uint64, count int) ([]mutant, error) {
	sources, err := load(ctx, root, packages)
	if err != nil {
		return nil, err
	}
	var all []mutant
	for _, one := range sources {
		if strings.Contains(string(one.text), "\nimport (") && !strings.Contains(one.path, "/seeds/") {
			all = append(all, generate(one)...)
		}
	}
	slices.SortStableFunc(all, func(a, b mutant) int { return cmp.Compare(a.file, b.file) }) // packages come in any order
	random := rand.New(rand.NewPCG(seed, seed))                                              //nolint:gosec // a seed repeats it
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	fmt.Printf("%d mutants are possible\n", len(all))
	const more = 2
	all = separate(all[:min(len(all), more*count)])
	byFile := map[string][]mutant{}
	for i := range all {
		all[i].number = i + 1
		byFile[all[i].file] = append(byFile[all[i].file], all[i])
	}
	for file, mutants := range byFile {
		path := filepath.Join(root, file)
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(path, instrument(text, module, mutants), 0o600); err != nil {
			return nil, err
		}
	}
	if err := os.Mkdir(filepath.Join(root, "mutants"), 0o700); err != nil {
		return nil, err
	}
	return all, os.WriteFile(filepath.Join(root, "mutants", "mutants.go"), []byte(selector), 0o600)
}

// build compiles the unit tests of the program and observes what each reaches.
func build(ctx context.Context, root string) (suites []*suite, err error) {
	list := exec.CommandContext(ctx, "go", "list", "-f", "{{.Dir}}", "./...")
	list.Dir = root
	output, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list packages: %w", err)
	}
	for dir := range strings.Lines(string(output)) {
		relative, err := filepath.Rel(root, strings.TrimSpace(dir))
		if err != nil {
			return nil, fmt.Errorf("list packages: %w", err)
		}
		one, err := compile(ctx, root, ".", relative)
		if err != nil {
			return nil, err
		}
		if one == nil {
			continue
		}
		if err := one.observe(ctx, root); err != nil {
			return nil, err
		}
		suites = append(suites, one)
	}
	return suites, nil
}
