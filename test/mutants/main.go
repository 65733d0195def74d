// Command mutants changes a copy of the program and counts how many of the changes the tests find. It generates mutants,
// which change a single line, or it reverts fixes.
package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	count := flag.Int("count", 100, "mutants")
	seed := flag.Uint64("seed", 0, "chooses the mutants; 0: random")
	runs := flag.Int("runs", 200, "schedules of the simulation for each mutant that the unit tests do not find, or for each revert")
	root := flag.String("root", "..", "directory of the program")
	packages := flag.String("packages", "reconcile,exposer,informers,deploy,metrics,cmd/lateen/agent,cmd/lateen/config", "directories whose packages are changed")
	reverts := flag.String("reverts", "", "directory of patches, each of which reverts a fix: the simulation plays each of them instead of mutants")
	names := flag.String("names", "", "names of the patches, separated by commas; default: all")
	flag.Parse()
	work := func(ctx context.Context, root string) error {
		if *seed == 0 {
			*seed = 1 + rand.Uint64N(1<<63)
		}
		fmt.Printf("seed %d\n", *seed)
		return measure(ctx, root, strings.Split(*packages, ","), *seed, *count, *runs)
	}
	if *reverts != "" {
		work = func(ctx context.Context, root string) error { return playReverts(ctx, root, *reverts, *names, *runs) }
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

// goTest runs `go test` in a directory with more arguments. It returns the output, and an error if a test fails.
func goTest(ctx context.Context, dir string, args ...string) (string, error) {
	test := exec.CommandContext(ctx, "go", append([]string{"test", "-vet=off"}, args...)...)
	test.Dir = dir
	output, err := test.CombinedOutput()
	return string(output), err
}

// measure changes the program, one mutant after the other, until so many count. Those that do not compile or that no unit test
// reaches do not.
func measure(ctx context.Context, root string, packages []string, seed uint64, count, runs int) error {
	reached, err := coverage(ctx, root, packages)
	if err != nil {
		return err
	}
	all, err := generateAll(root, packages)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // a seed repeats it
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	fmt.Printf("%d mutants are possible\n", len(all))
	found, unreached := map[string]int{}, 0
	var survivors []mutant
	for _, one := range all {
		if found[byUnitTests]+found[bySimulation]+len(survivors) == count {
			break
		}
		if !reached[place{one.file, one.line}] {
			unreached++
			continue
		}
		how, err := one.play(ctx, root, runs)
		if err != nil {
			return err
		}
		found[how]++
		if how == survived {
			survivors = append(survivors, one)
			fmt.Printf("survived: %s\n", one)
		}
	}
	total := found[byUnitTests] + found[bySimulation]
	fmt.Printf("%d of %d mutants were found: %d by unit tests, %d by the simulation; %d more are in lines that no unit test reaches\n",
		total, total+len(survivors), found[byUnitTests], found[bySimulation], unreached)
	return nil
}

// How a mutant ended.
const (
	notCompiled  = "not compiled"
	byUnitTests  = "unit tests"
	bySimulation = "simulation"
	survived     = "survived"
)

// play writes a mutant into the program, and undoes it after the tests: of its package, of all packages, and the simulation.
func (m mutant) play(ctx context.Context, root string, runs int) (how string, err error) {
	path := filepath.Join(root, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	defer func() {
		if undone := os.WriteFile(path, text, 0o600); err == nil {
			err = undone
		}
	}()
	if err := os.WriteFile(path, m.apply(text), 0o600); err != nil {
		return "", err
	}
	const limit = "-timeout=3m" // a mutant that makes tests hang counts as found
	for _, packages := range []string{"./" + filepath.Dir(m.file), "./..."} {
		switch output, err := goTest(ctx, root, limit, "-failfast", packages); {
		case strings.Contains(output, "[build failed]"):
			return notCompiled, nil
		case err != nil:
			return byUnitTests, nil
		}
	}
	if _, err := goTest(ctx, filepath.Join(root, "test"), "-timeout=20m", "-run=TestSchedules", "./sim", "-runs", fmt.Sprint(runs)); err != nil {
		return bySimulation, nil
	}
	return survived, nil
}

// place is a line of a file of the program.
type place struct {
	file string
	line int
}

// coverage returns the lines of packages that unit tests reach.
func coverage(ctx context.Context, root string, packages []string) (map[place]bool, error) {
	profile := filepath.Join(root, "coverage")
	changed := "./" + strings.Join(packages, "/...,./") + "/..."
	if output, err := goTest(ctx, root, "-coverpkg="+changed, "-coverprofile="+profile, "./..."); err != nil {
		return nil, fmt.Errorf("run the tests without a mutant: %w\n%s", err, output)
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return nil, err
	}
	const module = "github.com/lateen-project/lateen/"
	reached := map[place]bool{}
	for line := range strings.Lines(string(text)) {
		file, block, _ := strings.Cut(strings.TrimPrefix(line, module), ":")
		var from, to, column, statements, times int
		if _, err := fmt.Sscanf(block, "%d.%d,%d.%d %d %d", &from, &column, &to, &column, &statements, &times); err != nil || times == 0 {
			continue // the first line has the mode
		}
		for ; from <= to; from++ {
			reached[place{file, from}] = true
		}
	}
	return reached, nil
}
