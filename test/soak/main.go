// Command soak lets agents work on all four kinds on a real control plane while everything around them goes wrong at
// random, and holds them to their promises. It moves no data.
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
	logs := flag.String("logs", "", "directory for the logs of the agents and of the simulated nodes (default: a new one)")
	flag.Parse()
	if *seed == 0 {
		*seed = uint64(time.Now().UnixNano())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := soak(ctx, *seed, time.Duration(*minutes)*time.Minute, *logs)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // there is nothing left to stop
	}
}

// soak goes on for so long, and then as long as the last transfers take.
func soak(ctx context.Context, seed uint64, length time.Duration, logs string) (err error) {
	s := &stage{seed: seed, tally: newTally(), logs: logs}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.open(ctx); err != nil {
		return fmt.Errorf("open the stage: %w", err)
	}
	fmt.Printf("seed %d, %s, %d nodes; logs in %s\n", seed, length, len(s.nodes), s.logs)
	for number, end := 1, time.Now().Add(length); time.Now().Before(end); number++ {
		r := s.newRound(number, min(roundLength, max(time.Until(end), time.Second)))
		if err := r.play(ctx); err != nil {
			return errors.Join(fmt.Errorf("play round %d: %w", number, err), s.journal.verdict())
		}
		fmt.Println(r)
		if s.journal.broken() {
			break
		}
	}
	s.tally.print(os.Stdout)
	return errors.Join(s.journal.verdict(), s.tally.verdict())
}
