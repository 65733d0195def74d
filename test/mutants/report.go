package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
)

// How a mutant ended.
const (
	notReached   = "not reached by a unit test"
	byUnitTests  = "unit tests"
	bySimulation = "simulation"
	survived     = "survived"
)

// kill runs the tests that reach a mutant, and then the simulation, until something fails.
func kill(ctx context.Context, root string, one mutant, suites []*suite, simulation *suite, runs int) (how string, err error) {
	how = notReached
	for _, tests := range suites {
		if !tests.reaches[one.number] {
			continue
		}
		how = survived
		passed, _, err := tests.run(ctx, root, one.number, tests.limit(), "")
		if err != nil {
			return "", err
		}
		if !passed {
			return byUnitTests, nil
		}
	}
	if how == notReached {
		return how, nil
	}
	passed, _, err := simulation.run(ctx, root, one.number, simulation.limit(), "", schedules(runs)...)
	if err == nil && !passed {
		how = bySimulation
	}
	return how, err
}

// schedules are the arguments of the simulation.
func schedules(runs int) []string {
	return []string{"-test.run", "TestSchedules", "-runs", strconv.Itoa(runs)}
}

// report counts mutants by how they ended.
type report struct {
	counts    map[string]map[string]int // by package
	survivors []mutant
}

func (r *report) add(one mutant, how string) {
	if r.counts == nil {
		r.counts = map[string]map[string]int{}
	}
	dir := filepath.Dir(one.file)
	if r.counts[dir] == nil {
		r.counts[dir] = map[string]int{}
	}
	r.counts[dir][how]++
	if how == survived {
		r.survivors = append(r.survivors, one)
		fmt.Printf("survived: %s\n", one)
	}
}

// sum returns how many mutants ended so.
func (r *report) sum(how string) (n int) {
	for _, counts := range r.counts {
		n += counts[how]
	}
	return n
}

// total returns how many mutants count: those that a unit test reaches.
func (r *report) total() int { return r.sum(byUnitTests) + r.sum(bySimulation) + r.sum(survived) }

func (r *report) print() {
	fmt.Printf("\n%-28s %10s %10s %10s\n", "package", byUnitTests, bySimulation, survived)
	for _, dir := range slices.Sorted(maps.Keys(r.counts)) {
		counts := r.counts[dir]
		fmt.Printf("%-28s %10d %10d %10d\n", dir, counts[byUnitTests], counts[bySimulation], counts[survived])
	}
	fmt.Printf("\n%d of %d mutants were found; %d more are in lines that no unit test reaches\n", r.total()-len(r.survivors), r.total(), r.sum(notReached))
	for _, one := range r.survivors {
		fmt.Printf("survived: %s\n", one)
	}
}

// String returns where a mutant is and what it changes.
func (m mutant) String() string { return fmt.Sprintf("%s:%d: %s → %s", m.file, m.line, m.was, m.is) }
