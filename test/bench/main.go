// Command bench prints figures of Lateen's agent at work on a real control plane, with movers that move nothing:
// throughput, API calls and memory. It judges none of them: figures depend on the machine. The subcommand scale
// measures what idle agents cost the API server.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/lateen-project/lateen/test/bench/record"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// deadline is what a run may take. All scenarios together take about four minutes on two cores.
const deadline = 20 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	command, arguments := runScenarios, os.Args[1:]
	subcommands := map[string]func(context.Context, []string) error{"scale": runScale, "floor": runFloor}
	if len(arguments) > 0 && subcommands[arguments[0]] != nil {
		command, arguments = subcommands[arguments[0]], arguments[1:]
	}
	if err := command(ctx, arguments); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // there is nothing left to stop
	}
}

// scenario is one thing to find out.
type scenario struct {
	name string
	play func(*env, context.Context, *record.Scenario) error
}

func scenarios() []scenario {
	return []scenario{{"pace", (*env).pace}, {"uploads", (*env).uploads}, {"maintenance", (*env).maintenance}, {"memory", (*env).memory}}
}

// names lists the scenarios.
func names() (all []string) {
	for _, scenario := range scenarios() {
		all = append(all, scenario.name)
	}
	return all
}

// runScenarios plays the scenarios, or one of them.
func runScenarios(ctx context.Context, arguments []string) error {
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	only := flags.String("only", "", "play one scenario: "+strings.Join(names(), ", "))
	into := flags.String("record", "", "keep the figures of a run without an error in this file")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	var played []record.Scenario
	err := withPlane(ctx, func(ctx context.Context, s *env) error {
		for _, scenario := range scenarios() {
			if *only != "" && *only != scenario.name {
				continue
			}
			seen, err := s.run(ctx, scenario)
			if err != nil {
				return fmt.Errorf("play scenario %s: %w", scenario.name, err)
			}
			played = append(played, *seen)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case len(played) == 0:
		return fmt.Errorf("find scenario %q: use one of %s", *only, strings.Join(names(), ", "))
	case *into != "":
		return record.Write(*into, names(), played)
	}
	return nil
}

// run plays a scenario and prints its figures.
func (s *env) run(ctx context.Context, scenario scenario) (*record.Scenario, error) {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil, fmt.Errorf("read load: %w", err)
	}
	average, _, _ := strings.Cut(string(load), " ")
	seen := &record.Scenario{Name: scenario.name, Date: time.Now().Format(time.DateOnly), Processors: runtime.NumCPU(), Load: average}
	progress("scenario %s begins: %d processors, load %s", seen.Name, seen.Processors, seen.Load)
	err = scenario.play(s, ctx, seen)
	return seen, errors.Join(err, seen.Print(os.Stdout))
}

func progress(format string, values ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, values...))
}

// env is one control plane, on which every scenario has installations of its own.
type env struct {
	plane *cluster.Cluster
	dir   string // for files
}

// withPlane calls a function with a control plane that has Velero's resource definitions.
func withPlane(ctx context.Context, do func(context.Context, *env) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	s := &env{}
	if s.dir, err = os.MkdirTemp("", "lateen-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	if err := fixture.LogToFile(s.dir); err != nil {
		return err
	}
	if s.plane, err = cluster.Start(ctx, cluster.Options{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.plane.Stop()) }()
	if err := testenv.InstallCRDs(ctx, s.plane.Admin()); err != nil {
		return err
	}
	return do(ctx, s)
}
