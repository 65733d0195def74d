package testenv

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"
)

// Gone is the phase of a Transition for a deletion. No resource has this phase.
const Gone Phase = "(gone)"

// Transition is one change of a transfer's phase, or its first observation.
type Transition struct {
	Name string
	Node string // the node of the transfer, if already known
	To   Phase
	At   time.Time // when this process observed it
}

// Recorder records the phase transitions of all transfers in a namespace, in the API server's order for each kind.
type Recorder struct {
	mu          sync.Mutex
	transitions []Transition
	changed     chan struct{} // closed and replaced at each transition
}

// Record starts a recorder that ends with ctx. Existing transfers count as first observations.
func (e *Env) Record(ctx context.Context) (*Recorder, error) {
	r := &Recorder{changed: make(chan struct{})}
	var synced []cache.InformerSynced
	for _, kind := range Kinds() {
		informer := dynamicinformer.NewFilteredDynamicInformer(e.dynamic, kind.Resource(), e.Namespace, 0, nil, nil).Informer()
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(object any) { r.add(transferOf(object)) },
			UpdateFunc: func(old, object any) {
				before, now := transferOf(old), transferOf(object)
				if before == nil || now != nil && before.Status.Phase != now.Status.Phase {
					r.add(now)
				}
			},
			DeleteFunc: func(object any) {
				if last := transferOf(object); last != nil {
					last.Status.Phase = Gone
					r.add(last)
				}
			},
		})
		if err != nil {
			return nil, fmt.Errorf("watch %ss: %w", kind, err)
		}
		go informer.RunWithContext(ctx)
		synced = append(synced, registration.HasSynced)
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil, fmt.Errorf("list transfers: %w", context.Cause(ctx))
	}
	return r, nil
}

// transferOf returns the transfer of an informer's event, or nil. The API server validates all fields of a Transfer.
func transferOf(object any) *Transfer {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	resource, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	transfer, err := View(resource)
	if err != nil {
		return nil
	}
	return transfer
}

func (r *Recorder) add(transfer *Transfer) {
	if transfer == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.transitions = append(r.transitions, Transition{
		Name: transfer.Name, Node: transfer.Node(), To: transfer.Status.Phase, At: time.Now(),
	})
	close(r.changed)
	r.changed = make(chan struct{})
}

// Phases returns the observed phases of the transfer with that name, including the first one.
func (r *Recorder) Phases(name string) []Phase {
	r.mu.Lock()
	defer r.mu.Unlock()
	var phases []Phase
	for _, transition := range r.transitions {
		if transition.Name == name {
			phases = append(phases, transition.To)
		}
	}
	return phases
}

// Until returns the transitions after done accepts them. The error contains the newest ones.
func (r *Recorder) Until(ctx context.Context, done func([]Transition) bool) ([]Transition, error) {
	for {
		r.mu.Lock()
		all, changed := slices.Clone(r.transitions), r.changed
		r.mu.Unlock()
		if done(all) {
			return all, nil
		}
		select {
		case <-ctx.Done():
			newest := all[max(0, len(all)-10):]
			return all, fmt.Errorf("wait for transitions: %w; the newest of %d: %+v", context.Cause(ctx), len(all), newest)
		case <-changed:
		}
	}
}
