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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/testenv"
)

const (
	roundLength = 25 * time.Second       // of faults
	concurrency = 10                     // how many transfers there are at a time
	recovery    = 90 * time.Second       // bounds a transfer, from the end of the faults on
	preparation = 60 * time.Second       // bounds what a transfer needs around it
	cleaning    = 30 * time.Second       // bounds what has to be seen, and to go, after a transfer
	collection  = 2 * time.Minute        // bounds the garbage collection; Kubernetes discovers new kinds every 30 s
	maxPause    = 400 * time.Millisecond // between two injections
)

// round is some time of faults, and the calm after it in which all transfers must end and leave nothing.
type round struct {
	*env
	number int
	length time.Duration
	random *rand.Rand
	began  time.Time
	calmed time.Time
	ended  time.Time
	count  int

	lock    sync.Mutex
	running map[string]*workload
	lost    map[string]bool // their targets were deleted
}

func (s *env) newRound(number int, length time.Duration) *round {
	const part = 1 << 20
	return &round{
		env: s, number: number, length: length, random: s.randomFor(part + uint64(number)), running: map[string]*workload{}, lost: map[string]bool{},
	}
}

// String summarizes the round.
func (r *round) String() string {
	return fmt.Sprintf("%s  round %d: %d transfers, %s of faults, settled %s after it", r.ended.Format(time.TimeOnly),
		r.number, r.count, r.calmed.Sub(r.began).Round(time.Second), r.ended.Sub(r.calmed).Round(time.Second/10))
}

// play plays the round.
func (r *round) play(ctx context.Context) error {
	r.began = time.Now()
	for _, k := range r.supervisors {
		k.reset()
	}
	r.plan.set(true)
	bad, calm := context.WithTimeout(ctx, r.length)
	defer calm()
	bounded, cancel := context.WithTimeout(ctx, r.length+recovery)
	defer cancel()
	var work sync.WaitGroup
	results := make(chan error, concurrency)
	for i := range concurrency {
		random := rand.New(rand.NewPCG(r.random.Uint64(), uint64(i)))
		work.Go(func() { results <- r.serve(bad, bounded, random) })
	}
	err := r.injectFaults(bad)
	r.plan.set(false)
	for _, played := range r.Nodes {
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
	r.history.reset()
	r.ended = time.Now()
	return errors.Join(err, ctx.Err())
}

// serve has one transfer after the other made, until the faults end.
func (r *round) serve(bad, bounded context.Context, random *rand.Rand) error {
	var deck []testenv.Kind
	for bad.Err() == nil && !r.history.isViolated() {
		if len(deck) == 0 {
			deck = testenv.Kinds()
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

// appClaims describes the claims of applications.
func (r *round) appClaims(ctx context.Context) (all []string) {
	list, err := r.Kube.CoreV1().PersistentVolumeClaims(r.Apps).List(ctx, metav1.ListOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	for _, claim := range list.Items {
		all = append(all, fmt.Sprintf("%s (%s, volume %q, deleting %t)", claim.Name, claim.Status.Phase, claim.Spec.VolumeName, claim.DeletionTimestamp != nil))
	}
	return all
}

// see waits for the end of a transfer and looks at what is left.
func (r *round) see(ctx context.Context, created *workload) error {
	r.lock.Lock()
	r.running[created.name] = created
	r.count++
	r.lock.Unlock()
	ended, err := r.history.until(ctx, created.uid, func(l transferState) bool { return l.gone || testenv.Settled(l.last) })
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
		r.history.violate("%s %s did not end: it is %q on %q, %q, finalizers %v; there are %v; the driver has snapshots %v; claims of applications are %v",
			created.kind, created.name, status.Phase, status.Node, status.Message, ended.last.Finalizers, left, r.Driver.Handles(), r.appClaims(looking))
		return err
	}
	r.counts.ended(created.kind, ended.last.Status.Phase)
	return r.leave(context.WithoutCancel(ctx), created, ended, lost)
}

// leave looks at what a transfer that has ended has left, and removes the rest.
func (r *round) leave(ctx context.Context, created *workload, ended transferState, lost bool) error {
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
			r.history.violate("%s %s has ended as %q and left %s", created.kind, created.name, phase, strings.Join(left, ", "))
		}
		return err
	})
	if err != nil {
		return err
	}
	if wrong := unjustified(ended, r.incidents.of(created.name), limits().Retries); wrong != "" {
		r.history.violate("%s %s is %q, but %s", created.kind, created.name, phase, wrong)
	}
	if err := bounded(func(ctx context.Context) error { return created.check(ctx, ended, lost) }); err != nil {
		r.history.violate("%s %s is %q, but: %v", created.kind, created.name, phase, err)
	}
	err = bounded(func(ctx context.Context) error {
		return ignoreGone(r.Transfers(created.kind).Delete(ctx, created.name))
	})
	if err != nil {
		return fmt.Errorf("delete %s %s: %w", created.kind, created.name, err)
	}
	if err := bounded(created.clean); err != nil {
		r.history.violate("after %s %s (%q): %v", created.kind, created.name, phase, err)
	}
	return nil
}

// one is a workload that runs and suits, or nil.
func (r *round) one(suits func(*workload) bool) *workload {
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
