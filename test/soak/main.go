// Command soak lets agents work on all four kinds on a real control plane while everything around them goes wrong at
// random, and holds them to their promises, also about what is in the volumes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	seed := flag.Uint64("seed", 0, "of everything that is left to chance; 0: the clock")
	minutes := flag.Int("minutes", 10, "how long new transfers are begun")
	agents := flag.Int("agents", 1, "of each node at the same time; each has all the slots")
	logs := flag.String("logs", "", "directory for the logs of the agents and of the simulated nodes (default: a new one)")
	flag.Parse()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &env{seed: *seed, counts: newCounts(), incidents: newIncidents(), logs: *logs, agents: max(*agents, 1)}
	err := s.soak(ctx, time.Duration(*minutes)*time.Minute)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // there is nothing left to stop
	}
}

// soak goes on for so long, and then as long as the last transfers take.
func (s *env) soak(ctx context.Context, length time.Duration) (err error) {
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx); err != nil {
		return fmt.Errorf("open the environment: %w", err)
	}
	fmt.Printf("seed %d, %s, %d nodes with %d agents each; logs in %s\n", s.seed, length, len(s.Nodes), s.agents, s.logs)
	for number, end := 1, time.Now().Add(length); time.Now().Before(end); number++ {
		r := s.newRound(number, min(roundLength, max(time.Until(end), time.Second)))
		if err := r.play(ctx); err != nil {
			return errors.Join(fmt.Errorf("play round %d: %w", number, err), s.history.err())
		}
		fmt.Println(r)
		if s.history.isViolated() {
			break
		}
	}
	s.counts.print(os.Stdout)
	return errors.Join(s.history.err(), s.counts.err())
}
