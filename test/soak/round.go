package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lateen-project/lateen/test/world"
)

const (
	roundLength = 25 * time.Second       // of bad weather
	customers   = 10                     // how many transfers there are at a time
	recovery    = 90 * time.Second       // bounds a transfer, from the end of the bad weather on
	preparation = 60 * time.Second       // bounds what a transfer needs around it
	cleaning    = 30 * time.Second       // bounds what has to be seen, and to go, after a transfer
	mostIdle    = 400 * time.Millisecond // between two acts of mischief
)

// round is some time of bad weather, and the calm after it in which all transfers must end and leave nothing.
type round struct {
	*stage
	number int
	length time.Duration
	random *rand.Rand
	began  time.Time
	calmed time.Time
	ended  time.Time
	count  int

	lock    sync.Mutex
	running map[string]*errand
	lost    map[string]bool // their targets were deleted
}

func (s *stage) newRound(number int, length time.Duration) *round {
	const mischief = 1 << 20
	return &round{
		stage: s, number: number, length: length, random: s.chance(mischief + uint64(number)), running: map[string]*errand{}, lost: map[string]bool{},
	}
}

// String tells what there was of it.
func (r *round) String() string {
	return fmt.Sprintf("%s  round %d: %d transfers, %s of bad weather, settled %s after it", r.ended.Format(time.TimeOnly),
		r.number, r.count, r.calmed.Sub(r.began).Round(time.Second), r.ended.Sub(r.calmed).Round(time.Second/10))
}

// play plays the round.
func (r *round) play(ctx context.Context) error {
	r.began = time.Now()
	for _, k := range r.keepers {
		k.turn()
	}
	r.weather.set(true)
	bad, calm := context.WithTimeout(ctx, r.length)
	defer calm()
	bounded, cancel := context.WithTimeout(ctx, r.length+recovery)
	defer cancel()
	var work sync.WaitGroup
	results := make(chan error, customers)
	for i := range customers {
		random := rand.New(rand.NewPCG(r.random.Uint64(), uint64(i)))
		work.Go(func() { results <- r.serve(bad, bounded, random) })
	}
	err := r.meddle(bad)
	r.weather.set(false)
	for _, played := range r.nodes {
		played.Faults.Clear()
	}
	r.calmed = time.Now()
	work.Wait()
	close(results)
	for result := range results {
		err = errors.Join(err, result)
	}
	if err != nil {
		return err
	}
	err = r.judge(ctx)
	r.journal.turn()
	r.ended = time.Now()
	return errors.Join(err, ctx.Err())
}

// serve has one transfer after the other made, until the weather is better.
func (r *round) serve(bad, bounded context.Context, random *rand.Rand) error {
	var deck []world.Kind
	for bad.Err() == nil && !r.journal.broken() {
		if len(deck) == 0 {
			deck = world.Kinds()
			random.Shuffle(len(deck), func(i, j int) { deck[i], deck[j] = deck[j], deck[i] })
		}
		preparing, cancel := context.WithTimeout(bounded, preparation)
		created, err := r.begin(preparing, deck[0], random.IntN(nodeCount*sourceCount))
		cancel()
		if err != nil {
			return fmt.Errorf("prepare a %s: %w", deck[0], err)
		}
		deck = deck[1:]
		if err := r.see(bounded, created); err != nil {
			return err
		}
	}
	return nil
}

// see waits for the end of a transfer and looks at what is left.
func (r *round) see(ctx context.Context, created *errand) error {
	r.lock.Lock()
	r.running[created.name] = created
	r.count++
	r.lock.Unlock()
	ended, err := r.journal.until(ctx, created.uid, func(l life) bool { return l.gone || world.Settled(l.last) })
	r.lock.Lock()
	delete(r.running, created.name)
	lost := r.lost[created.name]
	r.lock.Unlock()
	if err != nil {
		if ended.last == nil {
			return fmt.Errorf("watch %s %s: %w", created.kind, created.name, err)
		}
		status := ended.last.Status
		looking, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleaning)
		defer cancel()
		left, err := r.left(looking, "="+string(created.uid), time.Now())
		r.journal.wrong("%s %s did not end: it is %q on %q, %q, finalizers %v; there are %v; the driver has snapshots %v",
			created.kind, created.name, status.Phase, status.Node, status.Message, ended.last.Finalizers, left, r.driver.Handles())
		return err
	}
	r.tally.ended(created.kind, ended.last.Status.Phase)
	return r.leave(context.WithoutCancel(ctx), created, ended, lost)
}

// leave looks at what a transfer that has ended has left, and removes the rest.
func (r *round) leave(ctx context.Context, created *errand, ended life, lost bool) error {
	phase := ended.last.Status.Phase
	bounded := func(step func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, cleaning)
		defer cancel()
		return step(ctx)
	}
	err := bounded(func(ctx context.Context) error {
		// What an agent that was out of reach makes even later goes by the event of it; nothing may stay till the end.
		left, err := r.left(ctx, "="+string(created.uid), ended.at.Truncate(time.Second).Add(-time.Second))
		if len(left) > 0 {
			r.journal.wrong("%s %s has ended as %q and left %s", created.kind, created.name, phase, strings.Join(left, ", "))
		}
		return err
	})
	if err != nil {
		return err
	}
	if wrong := unjustified(ended, r.harms.of(created.name), limits().Retries); wrong != "" {
		r.journal.wrong("%s %s is %q, but %s", created.kind, created.name, phase, wrong)
	}
	if err := bounded(func(ctx context.Context) error { return created.check(ctx, ended, lost) }); err != nil {
		r.journal.wrong("%s %s is %q, but: %v", created.kind, created.name, phase, err)
	}
	err = bounded(func(ctx context.Context) error {
		return ignoreGone(r.Transfers(created.kind).Delete(ctx, created.name))
	})
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", created.kind, created.name, err)
	}
	if err := bounded(created.clean); err != nil {
		r.journal.wrong("after %s %s (%q): %v", created.kind, created.name, phase, err)
	}
	return nil
}

// one is an errand that runs and suits, or nil.
func (r *round) one(suits func(*errand) bool) *errand {
	r.lock.Lock()
	defer r.lock.Unlock()
	var names []string
	for name, created := range r.running {
		if suits(created) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return r.running[names[r.random.IntN(len(names))]]
}
