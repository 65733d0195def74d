package reconcile

import (
	"cmp"
	"time"
)

// staleGrace is how long a stale cache delays the start of a transfer. A reflector tries again within one minute.
const staleGrace = 2 * time.Minute

// startDelay reports whether a transfer must not start yet, and for how long if that is known. While a cache is stale, it may
// lack a transfer that the coordinator has started on this node; a kind whose requests always fail must not block the others.
// Another restore to the same pod blocks this one. Once no other restore runs, a restarted one waits for RestartDelay: the
// kubelet must report the end of the pod's init container first.
func (t *TransferReconciler[T]) startDelay(s *request[T]) (delayed bool, left time.Duration) {
	if t.Stale() && s.observed.Now.Before(t.local.staleSince(s.key, s.observed.Now).Add(staleGrace)) {
		return true, ConflictRequeue
	}
	if !t.sharesPod(s) {
		return false, 0
	}
	busy := t.isBesideAnother(s)
	if since := t.local.aloneSince(s.key, s.state.Restarts, busy, s.observed.Now); !busy && s.state.Restarts > 0 {
		left = max(since.Add(t.Limits.RestartDelay).Sub(s.observed.Now), 0)
	}
	return busy || left > 0, left
}

// sharesPod reports whether other volumes of the pod may be restored too.
func (t *TransferReconciler[T]) sharesPod(s *request[T]) bool {
	return t.Kind.Restores && s.spec.Source.PodVolume != nil
}

func (t *TransferReconciler[T]) isBesideAnother(s *request[T]) bool {
	for _, other := range t.Siblings(s.object) {
		if s.state.MustNotRunBeside(t.Kind.Get(other)) {
			return true
		}
	}
	return false
}

// SharePod reports whether two restores go to volumes of the same pod.
func (t *TransferReconciler[T]) SharePod(a, b T) bool {
	if a.GetUID() == b.GetUID() {
		return false
	}
	one, other := t.Kind.MoverSpec(a, 0).Source.PodVolume, t.Kind.MoverSpec(b, 0).Source.PodVolume
	return one != nil && other != nil && one.Pod.Namespace == other.Pod.Namespace && one.Pod.Name == other.Pod.Name && one.Pod.UID == other.Pod.UID
}

// AwaitsSibling reports whether a change of another restore to the same pod may allow this one to start.
func (t *TransferReconciler[T]) AwaitsSibling(object T) bool {
	return t.Kind.Get(object).Phase.NeedsSlot()
}

// staleSince returns when a cache of transfers was first observed as stale.
func (l *localState) staleSince(key string, now time.Time) time.Time {
	return l.update(key, func(kept *entry) { kept.stale = cmp.Or(kept.stale, now) }).stale
}

// aloneSince returns since when no other restore to the same pod runs beside an attempt, as observed by this agent; zero if one
// runs.
func (l *localState) aloneSince(key string, attempt int, busy bool, now time.Time) time.Time {
	return l.update(key, func(kept *entry) {
		if busy || kept.aloneAs != attempt {
			kept.alone, kept.aloneAs = time.Time{}, attempt
		}
		if !busy {
			kept.alone = cmp.Or(kept.alone, now)
		}
	}).alone
}
