package testenv

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Gone is the phase of a Transition for a deletion. No resource has this phase.
const Gone Phase = "(gone)"

// Transition is one change of a transfer's phase, or its first observation.
type Transition struct {
	Kind Kind
	Name string
	Node string // the node of the transfer, if already known
	From Phase
	To   Phase
	At   time.Time // when this process observed it
}

// Recorder records the phase transitions of all transfers in a namespace, in the API server's order for each kind. An
// interrupted watch resumes at its last version. If that version has expired, the recorder lists again.
type Recorder struct {
	mu          sync.Mutex
	transitions []Transition
	changed     chan struct{} // closed and replaced at each transition
	err         error         // why the recording ended
}

// Record starts a recorder that ends with ctx. Existing transfers count as first observations.
func (w *Env) Record(ctx context.Context) (*Recorder, error) {
	r := &Recorder{changed: make(chan struct{})}
	for _, kind := range Kinds() {
		s := &kindRecorder{recorder: r, kind: kind, client: w.Transfers(kind).client, known: map[string]*Transfer{}}
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

// Transitions returns all transitions so far.
func (r *Recorder) Transitions() []Transition {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.transitions)
}

// Phases returns the observed phases of the transfer with that name, including the first one.
func (r *Recorder) Phases(name string) []Phase {
	var phases []Phase
	for _, transition := range r.Transitions() {
		if transition.Name == name {
			phases = append(phases, transition.To)
		}
	}
	return phases
}

// MostAtOnce returns the maximum number of concurrent transfers on node in one of phases.
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

// Until returns the transitions after done accepts them. The error contains the newest ones.
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
