package informers

import (
	"errors"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
)

// Resources caches the transfers of one kind: those that have the label of the agent's node, and all while the agent
// coordinates. Its reads are those of an Informer. Only its caller knows when a term begins and ends: see Caches.
type Resources[T Object] struct {
	own  *Informer[T]
	mine labels.Selector
	open func(g *group) *Informer[T] // of all

	next     *Informer[T]                // of the term that is about to begin
	all      atomic.Pointer[Informer[T]] // nil while this agent does not coordinate
	indexes  map[string]func(T) []string
	handlers []func(T)
}

// newResources returns the resources that have the labels of mine; add adds an informer of others to a group.
func newResources[T Object](g *group, mine labels.Set, add func(g *group, labels string) *Informer[T]) *Resources[T] {
	return &Resources[T]{
		own: add(g, mine.String()), mine: mine.AsSelectorPreValidated(), indexes: map[string]func(T) []string{},
		open: func(g *group) *Informer[T] { return add(g, "") },
	}
}

func (r *Resources[T]) current() *Informer[T] {
	if all := r.all.Load(); all != nil {
		return all
	}
	return r.own
}

func (r *Resources[T]) stale() bool { return r.current().stale() }

// Get returns the newest version of a resource, or false.
func (r *Resources[T]) Get(key string) (T, bool) { return r.current().Get(key) }

// List returns the newest versions of all resources.
func (r *Resources[T]) List() []T { return r.current().List() }

// ByIndex returns the newest versions of the resources with that index value.
func (r *Resources[T]) ByIndex(index, word string) []T { return r.current().ByIndex(index, word) }

// Record records a resource as the API server returned it to a write of this process.
func (r *Resources[T]) Record(written T) {
	if r.mine.Matches(labels.Set(written.GetLabels())) {
		r.own.Record(written)
	}
	if all := r.all.Load(); all != nil {
		all.Record(written)
	}
}

// Index adds an index for ByIndex. Call it before Run.
func (r *Resources[T]) Index(name string, of func(T) []string) error {
	r.indexes[name] = of
	return r.own.Index(name, of)
}

// AddHandler calls enqueue with every resource that is added, updated or deleted. Call it before Run.
func (r *Resources[T]) AddHandler(enqueue func(T)) (cache.DoneChecker, error) {
	r.handlers = append(r.handlers, enqueue)
	return r.own.AddHandler(func(object T) {
		if r.all.Load() == nil { // else the other informer delivers it
			enqueue(object)
		}
	})
}

// widen adds the informer of all resources to the group of a term.
func (r *Resources[T]) widen(g *group) (handled []cache.DoneChecker) {
	r.next = r.open(g)
	if g.err != nil {
		return nil
	}
	for name, of := range r.indexes {
		g.err = errors.Join(g.err, r.next.Index(name, of))
	}
	for _, enqueue := range r.handlers {
		done, err := r.next.AddHandler(enqueue)
		handled, g.err = append(handled, done), errors.Join(g.err, err)
	}
	return handled
}

// use switches to the informer of all resources, which has synced, or back. What this process wrote stays known.
func (r *Resources[T]) use(all bool) {
	if !all {
		r.all.Store(nil)
		r.next = nil // nothing keeps its objects
		return
	}
	r.own.lock.Lock()
	for _, written := range r.own.written {
		r.next.Record(written)
	}
	r.own.lock.Unlock()
	r.all.Store(r.next)
}
