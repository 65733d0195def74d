package informers

import (
	"context"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
)

// group holds informers that run together.
type group struct {
	all []informer
	err error // why one could not be created; no more are created then
}

// informer is an Informer of any type.
type informer interface {
	run(ctx context.Context)
	synced() cache.DoneChecker
	lacks() string
}

// add creates an informer in a group.
func add[T Object, L runtime.Object](g *group, name string, source Source[L], example T, scope Scope, trim func(T)) *Informer[T] {
	if g.err != nil {
		return nil
	}
	created, err := New(name, source, example, scope, trim)
	if err != nil {
		g.err = err
		return nil
	}
	g.all = append(g.all, created)
	return created
}

// noTrim keeps the whole object.
func noTrim[T Object](T) {}

// Run watches until the context ends. It returns when every informer has stopped.
func (g *group) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, one := range g.all {
		running.Go(func() { one.run(ctx) })
	}
	running.Wait()
}

// Synced returns checkers that are done when the caches hold what the API server had at the start.
func (g *group) Synced() []cache.DoneChecker {
	checkers := make([]cache.DoneChecker, 0, len(g.all))
	for _, one := range g.all {
		checkers = append(checkers, one.synced())
	}
	return checkers
}

// Lacking describes the caches that are not synced, with the errors of their last requests; empty if all are synced.
func (g *group) Lacking() string {
	var lacks []string
	for _, one := range g.all {
		if lack := one.lacks(); lack != "" {
			lacks = append(lacks, lack)
		}
	}
	return strings.Join(lacks, "; ")
}
