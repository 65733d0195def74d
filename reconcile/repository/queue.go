package repository

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/lateen-project/lateen/reconcile/maintenance"
)

// repositoryState is what this process knows of a repository beyond its caches.
type repositoryState struct {
	place
	reported maintenance.Reason // the last reason that blocked it
	failures int                // consecutive failed runs, uncreated jobs too
}

// place is the place of a due repository among the others. It is the zero value for a repository that is not due.
type place struct {
	queued       bool      // it waits for a free place
	due          time.Time // since when it is due, if it is queued
	createFailed bool      // its job could not be created; it blocks no other repository
}

func (p place) equal(other place) bool {
	return p.queued == other.queued && p.due.Equal(other.due) && p.createFailed == other.createFailed
}

func (r *Reconciler) state(key string) repositoryState {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.states[key]
}

// update changes the state of a repository. A changed place may let others start, so it enqueues the first ones.
func (r *Reconciler) update(key string, change func(*repositoryState)) {
	r.lock.Lock()
	before := r.states[key]
	after := before
	change(&after)
	if r.states == nil {
		r.states = map[string]repositoryState{}
	}
	r.states[key] = after
	r.lock.Unlock()
	if !before.equal(after.place) {
		r.enqueueQueued()
	}
}

// forget drops the state of a repository that does not exist.
func (r *Reconciler) forget(key string) {
	if object, known := r.written.Forget(key); known {
		r.Metrics.DeleteRepository(object.Name)
	}
	r.lock.Lock()
	last := r.states[key]
	delete(r.states, key)
	r.lock.Unlock()
	if !last.equal(place{}) {
		r.enqueueQueued()
	}
}

// enqueueQueued enqueues the first Limit repositories of the queue. So a thousand queued ones are not all reconciled
// at each end of a job.
func (r *Reconciler) enqueueQueued() {
	r.lock.Lock()
	defer r.lock.Unlock()
	keys := slices.Collect(maps.Keys(r.states))
	keys = slices.DeleteFunc(keys, func(key string) bool { return !r.states[key].queued })
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(r.states[a].due.Compare(r.states[b].due), cmp.Compare(a, b))
	})
	for _, key := range keys[:min(r.Limit, len(keys))] {
		r.Enqueue(key)
	}
}

// waiting returns the other repositories whose job is due and can be created.
func (r *Reconciler) waiting(but string, jobs jobsByLabel) []maintenance.Waiting {
	var all []maintenance.Waiting
	for _, object := range r.Repositories.List() {
		key := object.Namespace + "/" + object.Name
		if key == but || r.state(key).createFailed {
			continue
		}
		if step := r.next(r.written.Newest(key, object), jobs); step.Action == maintenance.Start {
			all = append(all, maintenance.Waiting{Name: key, Due: step.Due})
		}
	}
	return all
}
