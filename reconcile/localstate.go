package reconcile

import (
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// localState holds what the caches do not show about the resources of one kind. All of it may be lost. A restarted
// agent restarts the grace of a cancel, exposes once more and reads its own writes from the caches.
type localState struct {
	lock sync.Mutex
	kept map[string]*entry    // by key
	uids map[string]types.UID // of all observed resources, by key
}

type entry struct {
	canceled   time.Time     // since when a cancel is observed; zero if none is
	waits      time.Time     // since when it is observed as not eligible; zero if it was eligible last
	activity   activity      // last observed activity of the mover
	begun      types.UID     // the mover of which an Event says that its data path has started
	activeAt   time.Time     // when it changed, by the clock of this agent
	blocker    string        // why the last attempt to expose or rebind did not finish
	created    int           // number of the last created mover: its restarts plus one
	lost       int           // number of the last mover that was deleted because it was lost
	loss       transfer.Loss // of that mover
	removed    []types.UID
	forced     types.UID // the mover that was force-deleted
	deleting   types.UID // the mover whose pod is observed as deleting
	deletingAt time.Time // when that was first observed
	podDeleted bool      // the mover was deleted, and none was created since
	deleted    []string  // names of the deleted claims
	logged     types.UID // the mover whose log was saved last
	home       string    // the node of the pod to whose volume a new restore writes
	hadTarget  bool      // that pod was observed
	rebound    bool
	reserved   types.UID // the target claim that a rebind only waits for to be bound
	rebindAt   time.Time // when this agent first tried to rebind
	alone      time.Time // since when no other restore to its pod runs; zero if one does
	aloneAs    int       // the attempt that is alone
	stale      time.Time // when a cache of transfers was first observed as stale
	clean      bool      // its snapshots are deleted
	reported   bool      // the one-time Event was sent: the foreign data mover, or what the clean-up waits for
	since      time.Time // when the phase began; finer than the API's timestamps of one second
	unanswered *unanswered
}

// unanswered is the last write whose answer was lost: the API server may have stored it.
type unanswered struct {
	before transfer.State
	step   transfer.Step
}

// read returns a copy of what is known of a resource.
func (l *localState) read(key string) entry {
	l.lock.Lock()
	defer l.lock.Unlock()
	if kept := l.kept[key]; kept != nil {
		return *kept
	}
	return entry{}
}

// update changes what is known of a resource. It returns a copy of the changed entry.
func (l *localState) update(key string, change func(*entry)) entry {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.kept == nil {
		l.kept = map[string]*entry{}
	}
	if l.kept[key] == nil {
		l.kept[key] = &entry{}
	}
	change(l.kept[key])
	return *l.kept[key]
}

// exposed records how the last attempt to expose ended. The message of the prepare timeout contains it.
func (l *localState) exposed(key string, restarts int, waits string, err error) {
	l.setBlocker(key, waits, err)
	if waits != "" || err != nil {
		return
	}
	l.update(key, func(kept *entry) { kept.created, kept.podDeleted = restarts+1, false })
}

// setBlocker records what a resource waits for, or the error that stopped it.
func (l *localState) setBlocker(key, waits string, err error) {
	if err != nil {
		waits = strings.TrimSpace(err.Error())
	}
	l.update(key, func(kept *entry) { kept.blocker = waits })
}

// markLost records why the mover that follows that number of restarts was lost. Its pod is deleted before the
// resource is written, so this agent alone knows the reason in between. The first reason counts: a deleting pod looks
// deleted by another client.
func (l *localState) markLost(key string, restarts int, loss transfer.Loss) {
	l.update(key, func(kept *entry) {
		if kept.lost != restarts+1 {
			kept.lost, kept.loss = restarts+1, loss
		}
	})
}

// loss returns why the mover that follows that number of restarts was deleted, or has no pod any more; zero if this
// agent neither deleted nor created it. So a mover that is deleted repeatedly is not created without end.
func (l *localState) loss(key string, restarts int, pod *corev1.Pod) transfer.Loss {
	kept := l.read(key)
	switch {
	case kept.lost == restarts+1:
		return kept.loss
	case kept.created == restarts+1 && pod == nil:
		return transfer.Vanished()
	}
	return transfer.Loss{}
}

// identify records the UID of a resource.
func (l *localState) identify(key string, uid types.UID) {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.uids == nil {
		l.uids = map[string]types.UID{}
	}
	l.uids[key] = uid
}

// isRecreated reports whether another resource with that key was observed last.
func (l *localState) isRecreated(key string, uid types.UID) bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	last, known := l.uids[key]
	return known && last != uid
}

// forget drops the state of a resource. It returns its last UID; empty if it was never observed.
func (l *localState) forget(key string) (last types.UID) {
	l.lock.Lock()
	defer l.lock.Unlock()
	last = l.uids[key]
	delete(l.kept, key)
	delete(l.uids, key)
	return last
}

// toRemove returns the objects in found that this agent did not delete yet. The caches may still show deleted
// objects.
func (l *localState) toRemove(key string, found exposer.Existing) exposer.Existing {
	kept := l.read(key)
	if found.Pod != nil && slices.Contains(kept.removed, found.Pod.UID) && (!found.Force || kept.forced == found.Pod.UID) {
		found.Pod = nil
	}
	found.Claims = slices.DeleteFunc(slices.Clone(found.Claims), func(claim *corev1.PersistentVolumeClaim) bool {
		return slices.Contains(kept.removed, claim.UID)
	})
	return found
}

// markDeleted records deletions. Objects that were never cached produce no delete event, so a later GET checks them
// again.
func (l *localState) markDeleted(key string, found exposer.Existing, cached bool) {
	l.update(key, func(kept *entry) {
		if found.Pod != nil {
			kept.removed = append(kept.removed, found.Pod.UID)
			kept.podDeleted = kept.podDeleted || cached
			if found.Force {
				kept.forced = found.Pod.UID
			}
		}
		for _, claim := range found.Claims {
			kept.removed = append(kept.removed, claim.UID)
			if cached {
				kept.deleted = append(kept.deleted, claim.Name)
			}
		}
	})
}

// undeleted returns what this agent did not delete: whether the mover pod is among it, and which of the claims.
func (l *localState) undeleted(key string, claims []string) (pod bool, unreadable []string) {
	kept := l.read(key)
	return !kept.podDeleted, slices.DeleteFunc(slices.Clone(claims), func(name string) bool { return slices.Contains(kept.deleted, name) })
}

// toLog reports whether the log of a mover is still to be saved, and records that it is.
func (l *localState) toLog(key string, mover types.UID) (first bool) {
	l.update(key, func(kept *entry) { first, kept.logged = kept.logged != mover, mover })
	return first
}

// isDeleting reports whether this agent already deleted all objects in found. It reports false if there is none.
func (l *localState) isDeleting(key string, found exposer.Existing) bool {
	left := l.toRemove(key, found)
	return left.Pod == nil && len(left.Claims) == 0 && (found.Pod != nil || len(found.Claims) > 0)
}

// markRebind records the progress of an unfinished rebind, which deleted the objects in found.
func (l *localState) markRebind(key string, found exposer.Existing, reserved types.UID) {
	l.markDeleted(key, found, true)
	l.update(key, func(kept *entry) { kept.reserved = reserved })
}

// toReport reports whether the one-time Event of a resource is still to be sent, and records that it is. Transfers of
// foreign data movers are never cleaned up, so no resource needs two.
func (l *localState) toReport(key string) (first bool) {
	l.update(key, func(kept *entry) { first, kept.reported = !kept.reported, true })
	return first
}

// activity is what a running mover has reported, as far as it is observed: the progress in the resource, and the last Event
// that was listed. Its times are those of the node's clock: they are only compared, never subtracted from this agent's clock.
type activity struct {
	startedAt  time.Time
	progress   transfer.Progress
	reportedAt time.Time
}
