package reconcile

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// canceled is when a cancel was first seen.
func (m *memory[T]) canceled(key string, now time.Time) time.Time {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	if kept.canceled.IsZero() {
		kept.canceled = now
	}
	return kept.canceled
}

// waitsSince is since when a new resource has not been eligible, as far as this agent has seen.
func (m *memory[T]) waitsSince(key string, now time.Time) time.Time {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	if kept.waits.IsZero() {
		kept.waits = now
	}
	return kept.waits
}

// waitsNoMore notes that a resource is eligible, or is not looked at by this agent.
func (m *memory[T]) waitsNoMore(key string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if kept := m.kept[key]; kept != nil {
		kept.waits = time.Time{}
	}
}

// endingSince is when the pod of a mover was first seen to be deleting.
func (m *memory[T]) endingSince(key string, mover types.UID, now time.Time) time.Time {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	if kept.ending != mover {
		kept.ending, kept.endingAt = mover, now
	}
	return kept.endingAt
}

// entered notes that a phase began now, and returns when the one before it did; zero if this agent
// did not see it begin.
func (m *memory[T]) entered(key string, now time.Time) time.Time {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	since := kept.since
	kept.since = now
	return since
}
