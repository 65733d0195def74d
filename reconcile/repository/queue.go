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

func (m *Reconciler) state(key string) repositoryState {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.states[key]
}

// update changes the state of a repository. A changed place may let others start, so it enqueues the first ones.
func (m *Reconciler) update(key string, change func(*repositoryState)) {
	m.lock.Lock()
	before := m.states[key]
	after := before
	change(&after)
	if m.states == nil {
		m.states = map[string]repositoryState{}
	}
	m.states[key] = after
	m.lock.Unlock()
	if !before.equal(after.place) {
		m.enqueueQueued()
	}
}

// forget drops the state of a repository that does not exist.
func (m *Reconciler) forget(key string) {
	if object, known := m.written.Forget(key); known {
		m.Metrics.DeleteRepository(object.Name)
	}
	m.lock.Lock()
	last := m.states[key]
	delete(m.states, key)
	m.lock.Unlock()
	if !last.equal(place{}) {
		m.enqueueQueued()
	}
}

// enqueueQueued enqueues the first Limit repositories of the queue. So a thousand queued ones are not all reconciled
// at each end of a job.
func (m *Reconciler) enqueueQueued() {
	m.lock.Lock()
	defer m.lock.Unlock()
	keys := slices.Collect(maps.Keys(m.states))
	keys = slices.DeleteFunc(keys, func(key string) bool { return !m.states[key].queued })
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(m.states[a].due.Compare(m.states[b].due), cmp.Compare(a, b))
	})
	for _, key := range keys[:min(m.Limit, len(keys))] {
		m.Enqueue(key)
	}
}

// waiting returns the other repositories whose job is due and can be created.
func (m *Reconciler) waiting(but string, jobs jobsByLabel) []maintenance.Waiting {
	var all []maintenance.Waiting
	for _, object := range m.Repositories.List() {
		key := object.Namespace + "/" + object.Name
		if key == but || m.state(key).createFailed {
			continue
		}
		if step := m.next(m.written.Newest(key, object), jobs); step.Action == maintenance.Start {
			all = append(all, maintenance.Waiting{Name: key, Due: step.Due})
		}
	}
	return all
}
