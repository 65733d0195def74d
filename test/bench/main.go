// Command bench prints figures of Lateen's agent at work on a real control plane, with movers that move
// nothing: throughput, API calls, memory and the cost of Event watches. It judges none of them: figures depend
// on the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// deadline is what all scenes may take together; they take about three minutes on two cores.
const deadline = 20 * time.Minute

func main() {
	asJSON := flag.Bool("json", false, "print the figures as JSON")
	only := flag.String("only", "", "play one scene: pace, turnover, memory or watches")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, os.Stderr, *asJSON, *only); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // there is nothing left to stop
	}
}

// scene is one thing to find out.
type scene struct {
	name string
	play func(*stage, context.Context) error
}

func scenes() []scene {
	return []scene{
		{"pace", (*stage).pace},
		{"turnover", (*stage).turnover},
		{"watches", (*stage).watches},
		{"memory", (*stage).memory},
	}
}

// run plays the scenes and prints the figures, those of a run that fails too.
func run(ctx context.Context, out, progress io.Writer, asJSON bool, only string) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	s := &stage{}
	err := errors.Join(s.run(ctx, progress, only), s.close())
	if asJSON {
		return errors.Join(err, s.json(out))
	}
	return errors.Join(err, s.table(out))
}

func (s *stage) run(ctx context.Context, progress io.Writer, only string) error {
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return fmt.Errorf("read load: %w", err)
	}
	fmt.Fprintf(progress, "%d processors, load before %s\n", runtime.NumCPU(), strings.Fields(string(load))[0])
	if err := s.open(ctx); err != nil {
		return fmt.Errorf("open the stage: %w", err)
	}
	played := false
	for _, scene := range scenes() {
		if only != "" && only != scene.name {
			continue
		}
		played = true
		begun := time.Now()
		if err := scene.play(s, ctx); err != nil {
			return fmt.Errorf("play scene %s: %w", scene.name, err)
		}
		fmt.Fprintf(progress, "%s: %.0f s\n", scene.name, time.Since(begun).Seconds())
	}
	if !played {
		return fmt.Errorf("find scene %q: use pace, turnover, watches or memory", only)
	}
	return nil
}
