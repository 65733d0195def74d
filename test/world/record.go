package world

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Gone is the phase of a Transition that stands for deletion. No resource ever has it.
const Gone Phase = "(gone)"

// Transition is one change of a transfer's phase, or its first appearance.
type Transition struct {
	Kind Kind
	Name string
	Node string // where the transfer is done, as far as that is settled
	From Phase
	To   Phase
	At   time.Time // when this process saw it
}

// Recorder keeps every transition of a namespace's transfers; those of a kind are in the order of the API server. A
// watch that breaks off goes on where it ended, or with what is there if the API server does not know that any more.
type Recorder struct {
	mu          sync.Mutex
	transitions []Transition
	changed     chan struct{} // closed and replaced at every transition
	err         error         // why the recording ended
}

// Record starts a recorder, which ends with ctx. It has what exists already as first appearances.
func (w *World) Record(ctx context.Context) (*Recorder, error) {
	r := &Recorder{changed: make(chan struct{})}
	for _, kind := range Kinds() {
		s := &story{recorder: r, kind: kind, client: w.Transfers(kind).client, known: map[string]*Transfer{}}
		version, err := s.list(ctx)
		if err != nil {
			return nil, err
		}
		go s.follow(ctx, version)
	}
	context.AfterFunc(ctx, func() { r.end(context.Cause(ctx)) })
	return r, nil
}

func (r *Recorder) add(transition Transition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.transitions = append(r.transitions, transition)
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *Recorder) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	close(r.changed)
	r.changed = make(chan struct{})
}

// Transitions are all so far.
func (r *Recorder) Transitions() []Transition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.transitions)
}

// Phases are those that the transfer of that name went through so far, the first one it was seen in included.
func (r *Recorder) Phases(name string) []Phase {
	var phases []Phase
	for _, transition := range r.Transitions() {
		if transition.Name == name {
			phases = append(phases, transition.To)
		}
	}
	return phases
}

// MostAtOnce is how many transfers on node were in one of phases at the same time, at most.
func (r *Recorder) MostAtOnce(node string, phases ...Phase) int {
	type transfer struct {
		kind Kind
		name string
	}
	inside := map[transfer]bool{}
	most := 0
	for _, transition := range r.Transitions() {
		this := transfer{kind: transition.Kind, name: transition.Name}
		if transition.Node == node && slices.Contains(phases, transition.To) {
			inside[this] = true
		} else {
			delete(inside, this)
		}
		most = max(most, len(inside))
	}
	return most
}

// Until returns the transitions once done says so of them. The error has the newest of them.
func (r *Recorder) Until(ctx context.Context, done func([]Transition) bool) ([]Transition, error) {
	for {
		r.mu.Lock()
		all, changed, err := slices.Clone(r.transitions), r.changed, r.err
		r.mu.Unlock()
		if done(all) {
			return all, nil
		}
		if err != nil {
			return all, fmt.Errorf("wait for transitions: %w", err)
		}
		select {
		case <-ctx.Done():
			newest := all[max(0, len(all)-10):]
			return all, fmt.Errorf("wait for transitions: %w; the newest of %d: %+v", context.Cause(ctx), len(all), newest)
		case <-changed:
		}
	}
}
