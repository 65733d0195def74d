// Command bench prints figures of Lateen's agent at work on a real control plane, with movers that move
// nothing: throughput, API calls, memory and the cost of Event watches. It judges none of them: figures depend
// on the machine. Arguments are more flags for the agent, such as --log-level=debug.
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
)

// deadline is what all scenarios may take together; they take about eight minutes on two cores.
const deadline = 20 * time.Minute

func main() {
	if len(os.Args) > 1 && os.Args[1] == "floor" {
		if err := runFloor(context.Background(), os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	asJSON := flag.Bool("json", false, "print the figures as JSON")
	only := flag.String("only", "", "play one scenario: "+names())
	into := flag.String("record", "", "keep the figures of a run without an error in this file, which the plot of the documentation is drawn from")
	logs := flag.String("logs", "", "directory for the logs of the agents and of the simulated nodes (default: they are not kept)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &env{logs: *logs, flags: flag.Args(), progress: os.Stderr}
	show := s.table
	if *asJSON {
		show = s.json
	}
	err := errors.Join(s.run(ctx, *only), show(os.Stdout))
	if err == nil && *into != "" {
		err = record(*into, s.recorded)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // there is nothing left to stop
	}
}

// scenario is one thing to find out.
type scenario struct {
	name string
	play func(*env, context.Context) error
}

func scenarios() []scenario {
	return []scenario{
		{"pace", (*env).pace},
		{"turnover", (*env).turnover},
		{"uploads", (*env).uploads},
		{"herd", (*env).herd},
		{"snapshots", (*env).snapshots},
		{"maintenance", (*env).maintenance},
		{"watches", (*env).watches},
		{"memory", (*env).memory},
	}
}

// names lists them, for messages.
func names() string {
	var all []string
	for _, scenario := range scenarios() {
		all = append(all, scenario.name)
	}
	return strings.Join(all, ", ")
}

// run plays the scenarios. There are figures of a run that fails too.
func (s *env) run(ctx context.Context, only string) (err error) {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.printLoad("begin"); err != nil {
		return err
	}
	if err := s.open(ctx); err != nil {
		return fmt.Errorf("open the stage: %w", err)
	}
	played := false
	for _, scenario := range scenarios() {
		if only != "" && only != scenario.name {
			continue
		}
		played = true
		if err := s.play(ctx, scenario); err != nil {
			return fmt.Errorf("play scenario %s: %w", scenario.name, err)
		}
		if err := s.printLoad(scenario.name + " ended"); err != nil {
			return err
		}
	}
	if !played {
		return fmt.Errorf("find scenario %q: use one of %s", only, names())
	}
	return nil
}

// play plays one scenario, with which all ends that began in it.
func (s *env) play(ctx context.Context, scenario scenario) error {
	before, known := len(s.closing), len(s.figures)
	load, err := loadAverage()
	if err != nil {
		return err
	}
	err = scenario.play(s, ctx)
	played := newRecorded(scenario.name, load)
	played.Figures = append(played.Figures, s.figures[known:]...)
	s.recorded = append(s.recorded, played)
	return errors.Join(err, s.closeDownTo(before))
}

// printLoad prints what has happened, and how busy the machine is: other work on it spoils the figures.
func (s *env) printLoad(what string) error {
	average, err := loadAverage()
	if err != nil {
		return err
	}
	fmt.Fprintf(s.progress, "%s  %s; %d processors, load %s\n", time.Now().Format(time.TimeOnly), what, runtime.NumCPU(), average)
	return nil
}
