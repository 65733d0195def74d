package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	module    = "github.com/lateen-project/lateen/"
	allErrors = "-gcflags=" + module + "...=-e" // not only the first ten of a package
)

// program is a copy of the program that has all its mutants: the environment selects one.
type program struct {
	root    string
	dirs    []string // below which packages are changed
	suites  []*suite // unit tests, then the simulation
	sources map[string]*source
	mutants []*mutant
}

// suite is the tests of a package.
type suite struct {
	dir     string
	args    []string
	reached map[place]bool // nil for the simulation
	took    time.Duration  // without a mutant
}

// place is a line of a file of the program.
type place struct {
	file string
	line int
}

// measure compiles all mutants of the packages below directories into a copy of the program. For each, it runs the unit tests that
// reach its line, then some schedules of the simulation, until one fails. Mutants that do not compile, change nothing, or are not
// reached by unit tests do not count.
func measure(ctx context.Context, root string, dirs []string, least float64) error {
	p := &program{root: root, dirs: dirs, sources: map[string]*source{}}
	for _, step := range []func(context.Context) error{p.generate, p.cover, p.compile, p.link} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	found, total := p.play(ctx)
	share := 100 * float64(found) / float64(total)
	fmt.Printf("%d of %d mutants were found (%.1f in 100)\n", found, total, share)
	if total == 0 || share < least {
		return fmt.Errorf("want at least %.1f in 100", least)
	}
	return nil
}

// cover finds which lines the unit tests of each package reach.
func (p *program) cover(ctx context.Context) error {
	list, ok := goRun(ctx, p.root, "list", "-f", "{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}", "./...")
	if !ok {
		return fmt.Errorf("list the packages:\n%s", list)
	}
	if err := p.build(ctx, "", "./...", "-cover", "-coverpkg=./"+strings.Join(p.dirs, "/...,./")+"/..."); err != nil {
		return err
	}
	profile := filepath.Join(p.root, "coverage")
	for path := range strings.FieldsSeq(list) {
		s := &suite{dir: strings.TrimPrefix(path, module), args: []string{"-test.coverprofile=" + profile}, reached: map[place]bool{}}
		if err := s.pass(ctx, p.root); err != nil {
			return err
		}
		text, err := os.ReadFile(profile)
		if err != nil {
			return fmt.Errorf("read coverage: %w", err)
		}
		for line := range strings.Lines(string(text)) {
			file, block, _ := strings.Cut(strings.TrimPrefix(line, module), ":")
			var from, to, column, statements, times int
			if _, err := fmt.Sscanf(block, "%d.%d,%d.%d %d %d", &from, &column, &to, &column, &statements, &times); err != nil || times == 0 {
				continue // the first line has the mode
			}
			for ; from <= to; from++ {
				s.reached[place{file, from}] = true
			}
		}
		s.args = nil
		p.suites = append(p.suites, s)
	}
	p.suites = append(p.suites, &suite{dir: "test/sim", args: []string{"-test.run=^TestSchedules$/^others$", "-first", "-runs=30"}})
	return nil
}

// build compiles the tests of packages of the module in a directory.
func (p *program) build(ctx context.Context, dir, packages string, flags ...string) error {
	args := slices.Concat([]string{"test", "-c", "-vet=off", "-o", filepath.Join(p.root, "bin") + "/"}, flags, []string{packages})
	if output, ok := goRun(ctx, filepath.Join(p.root, dir), args...); !ok {
		return fmt.Errorf("compile the tests:\n%s", output)
	}
	return nil
}

var compileError = regexp.MustCompile(`(?m)^(\S+\.go):(\d+):\d+: .*$`)

// compile writes the mutants into the program, and leaves out those that do not compile.
func (p *program) compile(ctx context.Context) error {
	dir := filepath.Join(p.root, "mutant")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	const selected = "package mutant\n\nimport (\n\t\"os\"\n\t\"strconv\"\n)\n\nvar On, _ = strconv.Atoi(os.Getenv(\"MUTANT\"))\n"
	if err := os.WriteFile(filepath.Join(dir, "mutant.go"), []byte(selected), 0o600); err != nil {
		return err
	}
	changed := p.sources
	for {
		for name, file := range changed {
			if err := os.WriteFile(filepath.Join(p.root, name), file.withMutants(), 0o600); err != nil {
				return err
			}
		}
		output, ok := goRun(ctx, p.root, "build", allErrors, "./...")
		if ok {
			return nil
		}
		changed = map[string]*source{}
		for _, found := range compileError.FindAllStringSubmatch(output, -1) {
			line, _ := strconv.Atoi(found[2])
			if file := p.sources[found[1]]; file != nil && file.drop(line) {
				changed[found[1]] = file
			}
		}
		if len(changed) == 0 {
			return fmt.Errorf("compile the program with its mutants:\n%s", output)
		}
	}
}

// link compiles the tests with the mutants, and runs them without any.
func (p *program) link(ctx context.Context) error {
	if err := errors.Join(p.build(ctx, "", "./...", allErrors), p.build(ctx, "test", "./sim", allErrors)); err != nil {
		return err
	}
	for _, s := range p.suites {
		if err := s.pass(ctx, p.root); err != nil {
			return err
		}
	}
	return nil
}

// pass measures how long the tests take without a mutant, with which they pass.
func (s *suite) pass(ctx context.Context, root string) error {
	began := time.Now()
	output, passed := s.run(ctx, root, 0, time.Minute)
	if s.took = time.Since(began); !passed {
		return fmt.Errorf("the tests of %s fail without a mutant:\n%s", s.dir, output)
	}
	return nil
}

// run runs the tests with a mutant. A mutant may allocate without end, hence a limit of memory, in KiB.
func (s *suite) run(ctx context.Context, root string, mutant int, limit time.Duration) (output string, passed bool) {
	test := exec.CommandContext(ctx, "sh", "-c", `ulimit -v 8000000 && exec "$@"`, "sh", filepath.Join(root, "bin", filepath.Base(s.dir)+".test"), "-test.failfast", "-test.timeout="+limit.String())
	test.Args = append(test.Args, s.args...)
	test.Dir = filepath.Join(root, s.dir)
	test.Env = append(os.Environ(), "MUTANT="+strconv.Itoa(mutant))
	text, err := test.CombinedOutput()
	return string(text), err == nil
}

// play runs the tests with each mutant, and prints those that survive. Most of those that take long hang and need no processor,
// hence so many at once.
func (p *program) play(ctx context.Context) (found, total int) {
	slots := make(chan struct{}, 4*runtime.NumCPU())
	var survived atomic.Int64
	var all sync.WaitGroup
	for i, m := range p.mutants {
		if i%500 == 0 {
			fmt.Printf("%d of %d\n", i, len(p.mutants))
		}
		suites := slices.DeleteFunc(slices.Clone(p.suites), func(s *suite) bool { return s.reached != nil && !s.reached[place{m.file, m.line}] })
		if m.omitted || len(suites) == 1 {
			continue
		}
		total++
		if own := slices.IndexFunc(suites, func(s *suite) bool { return s.dir == filepath.Dir(m.file) }); own > 0 {
			suites[0], suites[own] = suites[own], suites[0]
		}
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			for _, s := range suites {
				if _, passed := s.run(ctx, p.root, m.number, 30*time.Second+10*s.took); !passed {
					return
				}
			}
			survived.Add(1)
			fmt.Printf("%s:%d: survived: %s\n", m.file, m.line, m)
		})
	}
	all.Wait()
	return total - int(survived.Load()), total
}
