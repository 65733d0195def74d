package reconcile

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/reconcile/transfer"
)

// canceled is when a cancel was first seen.
func (m *localState) canceled(key string, now time.Time) time.Time {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	if kept.canceled.IsZero() {
		kept.canceled = now
	}
	return kept.canceled
}

// waitsSince is since when a new resource has not been eligible, as far as this agent has seen.
func (m *localState) waitsSince(key string, now time.Time) time.Time {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	if kept.waits.IsZero() {
		kept.waits = now
	}
	return kept.waits
}

// clearWait notes that a resource is eligible, or is not looked at by this agent.
func (m *localState) clearWait(key string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if kept := m.kept[key]; kept != nil {
		kept.waits = time.Time{}
	}
}

// deletingSince is when the pod of a mover was first seen to be deleting.
func (m *localState) deletingSince(key string, mover types.UID, now time.Time) time.Time {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	if kept.deleting != mover {
		kept.deleting, kept.deletingAt = mover, now
	}
	return kept.deletingAt
}

// entered notes that a phase began now, and returns when the one before it did; zero if this agent
// did not see it begin.
func (m *localState) entered(key string, now time.Time) time.Time {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	since := kept.since
	kept.since = now
	return since
}

// activity is what a mover that works has reported. Times are those of its node's clock: they are compared, and
// nothing is counted from them.
type activity struct {
	startedAt  time.Time
	started    bool
	progress   transfer.Progress
	progressAt time.Time
}

// active is when the activity of a mover was first seen to be what it is.
func (m *localState) active(key string, observed activity, now time.Time) time.Time {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	if kept.activeAt.IsZero() || kept.activity != observed {
		kept.activity, kept.activeAt = observed, now
	}
	return kept.activeAt
}

// silent is how long the mover of a resource has reported nothing new; 0 if this agent does not follow it.
func (m *localState) silent(key string, now time.Time) time.Duration {
	m.lock.Lock()
	defer m.lock.Unlock()
	if kept := m.kept[key]; kept != nil && !kept.activeAt.IsZero() {
		return now.Sub(kept.activeAt)
	}
	return 0
}
