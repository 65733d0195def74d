package reconcile

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// canceled returns when a cancel was first observed.
func (l *localState) canceled(key string, now time.Time) time.Time {
	l.lock.Lock()
	defer l.lock.Unlock()
	kept := l.of(key)
	if kept.canceled.IsZero() {
		kept.canceled = now
	}
	return kept.canceled
}

// waitsSince returns when this agent first observed that a new resource is not eligible.
func (l *localState) waitsSince(key string, now time.Time) time.Time {
	l.lock.Lock()
	defer l.lock.Unlock()
	kept := l.of(key)
	if kept.waits.IsZero() {
		kept.waits = now
	}
	return kept.waits
}

// clearWait records that a resource is eligible, or that this agent does not act on it.
func (l *localState) clearWait(key string) {
	l.lock.Lock()
	defer l.lock.Unlock()
	if kept := l.kept[key]; kept != nil {
		kept.waits = time.Time{}
	}
}

// deletingSince returns when the mover pod was first observed as deleting.
func (l *localState) deletingSince(key string, mover types.UID, now time.Time) time.Time {
	l.lock.Lock()
	defer l.lock.Unlock()
	kept := l.of(key)
	if kept.deleting != mover {
		kept.deleting, kept.deletingAt = mover, now
	}
	return kept.deletingAt
}

// entered records that a phase begins now. It returns when the previous phase began; zero if this agent did not
// observe that.
func (l *localState) entered(key string, now time.Time) time.Time {
	l.lock.Lock()
	defer l.lock.Unlock()
	kept := l.of(key)
	since := kept.since
	kept.since = now
	return since
}

// active returns when the current activity of a mover was first observed.
func (l *localState) active(key string, observed activity, now time.Time) time.Time {
	l.lock.Lock()
	defer l.lock.Unlock()
	kept := l.of(key)
	if kept.activeAt.IsZero() || kept.activity != observed {
		kept.activity, kept.activeAt = observed, now
	}
	return kept.activeAt
}

// silent returns how long the mover of a resource has reported nothing new; 0 if this agent does not watch it.
func (l *localState) silent(key string, now time.Time) time.Duration {
	l.lock.Lock()
	defer l.lock.Unlock()
	if kept := l.kept[key]; kept != nil && !kept.activeAt.IsZero() {
		return now.Sub(kept.activeAt)
	}
	return 0
}
