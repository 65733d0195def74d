// Command demo acts out three pod volume backups, the maintenance of their repository and a restore on a real control
// plane, with Velero's real server and movers, and checks what it sees. What it prints it has read from the API or from the agent's metrics; an act
// that fails shows the end of the agent's log too. It leaves nothing running and nothing on disk.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

func main() {
	sabotage := flag.String("break", "", "spoil one act, which must then fail: agent, class, maintenance, kill or restore")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Stdout, *sabotage); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:gocritic // there is nothing left to stop
	}
}

// run plays all acts, or up to the first that fails.
func run(ctx context.Context, out io.Writer, sabotage string) error {
	s := &stage{report: report{out: out, begun: time.Now()}, sabotage: sabotage}
	acts := s.acts()
	if !slices.ContainsFunc(acts, func(a act) bool { return sabotage == "" || sabotage == a.sabotage }) {
		return fmt.Errorf("--break=%s: no such act; use agent, class, maintenance, kill or restore", sabotage)
	}
	return errors.Join(s.run(ctx, acts), s.close())
}

func (s *stage) run(ctx context.Context, acts []act) error {
	if err := s.within(ctx, s.open); err != nil {
		return fmt.Errorf("open the stage: %w", err)
	}
	var stories []story
	for i, act := range acts {
		s.heading(i+1, act.title)
		var reported story
		err := s.within(ctx, func(ctx context.Context) (err error) {
			reported, err = act.play(ctx)
			return err
		})
		if err != nil {
			s.step("the agent's log ends with:")
			s.quote(s.program.tail()...)
			return fmt.Errorf("act %d failed: %w", i+1, err)
		}
		if reported.act = i + 1; reported.kind != "" {
			stories = append(stories, reported)
		}
	}
	if err := s.table(stories); err != nil {
		return err
	}
	s.seeAlso()
	return nil
}

// within bounds a part of the play.
func (s *stage) within(ctx context.Context, part func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	return part(ctx)
}
