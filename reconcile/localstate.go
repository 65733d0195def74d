package reconcile

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer"
)

// localState is what the caches cannot tell about the resources of one kind. All of it can be lost: a
// restarted agent starts a cancel's grace anew, tries to expose once more, and reads its writes back.
type localState struct {
	lock sync.Mutex
	kept map[string]*entry // by key
}

type entry struct {
	canceled   time.Time // when a cancel was first seen
	waits      time.Time // since when it has been seen not to be eligible; zero if it was when last looked at
	activity   activity  // of its mover, as it was last seen to change
	activeAt   time.Time // when that was, by the clock of this agent
	blocker    string    // what the last attempt to expose or to deliver met
	created    int       // movers, counted up to the one that was made last
	removed    []types.UID
	forced     types.UID // the mover that was deleted by force
	deleting   types.UID // the mover whose pod was seen to be deleting
	deletingAt time.Time // and when that was first
	podDeleted bool      // the mover was deleted, and none was made since
	deleted    []string  // names of the claims that were deleted
	logged     types.UID // the mover whose log was kept last
	localPod   bool      // the pod whose volume is moved was seen on this node
	rebound    bool
	reserved   bool      // all that delivery waits for is that its target is bound
	rebinds    time.Time // when this agent first tried to deliver
	alone      time.Time // since when no other restore to its pod works; zero if one does
	clean      bool      // nothing is left of its snapshots
	reported   bool      // an Event says for which other data mover it is, or what its clean-up waits for
	since      time.Time // when the phase began, to better than the second of the API's timestamps
}

func (m *localState) of(key string) *entry {
	if m.kept == nil {
		m.kept = map[string]*entry{}
	}
	if m.kept[key] == nil {
		m.kept[key] = &entry{}
	}
	return m.kept[key]
}

// exposed remembers how the last attempt to expose ended; the prepare timeout says it.
func (m *localState) exposed(key string, restarts int, waits string, err error) {
	m.setBlocker(key, waits, err)
	if waits != "" || err != nil {
		return
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	kept.created, kept.podDeleted = restarts+1, false
}

// setBlocker remembers what is waited for, or in the way.
func (m *localState) setBlocker(key, waits string, err error) {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	kept.blocker = waits
	if err != nil {
		kept.blocker = strings.TrimSpace(err.Error())
	}
}

// exposedIn tells whether this agent has made the mover that follows so many restarts.
func (m *localState) exposedIn(key string, restarts int) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).created == restarts+1
}

// hasExposed tells whether this agent has made a mover, for which a snapshot has to be handed over first.
func (m *localState) hasExposed(key string) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).created > 0
}

func (m *localState) blocker(key string) string {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).blocker
}

// forget drops a resource.
func (m *localState) forget(key string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	delete(m.kept, key)
}

// toRemove is what is still to be deleted of what was found: the caches may show for a while what is gone.
func (m *localState) toRemove(key string, found exposer.Existing) exposer.Existing {
	m.lock.Lock()
	defer m.lock.Unlock()
	removed := m.of(key).removed
	if found.Pod != nil && slices.Contains(removed, found.Pod.UID) && (!found.Lost || m.of(key).forced == found.Pod.UID) {
		found.Pod = nil
	}
	found.Claims = slices.DeleteFunc(slices.Clone(found.Claims), func(claim *corev1.PersistentVolumeClaim) bool {
		return slices.Contains(removed, claim.UID)
	})
	return found
}

// markDeleted notes what was deleted. Of what no cache had nobody hears that it is gone, so it is looked for again.
func (m *localState) markDeleted(key string, found exposer.Existing, cached bool) {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	kept.podDeleted = kept.podDeleted || cached && found.Pod != nil
	if found.Pod != nil {
		kept.removed = append(kept.removed, found.Pod.UID)
	}
	if found.Pod != nil && found.Lost {
		kept.forced = found.Pod.UID
	}
	for _, claim := range found.Claims {
		kept.removed = append(kept.removed, claim.UID)
		if cached {
			kept.deleted = append(kept.deleted, claim.Name)
		}
	}
}

// undeleted is what was not deleted by this agent: whether the mover is, and which of the claims.
func (m *localState) undeleted(key string, claims []string) (pod bool, unreadable []string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	return !kept.podDeleted, slices.DeleteFunc(slices.Clone(claims), func(name string) bool { return slices.Contains(kept.deleted, name) })
}

// toLog tells whether the log of a mover is still to be kept, and notes that it is.
func (m *localState) toLog(key string, mover types.UID) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	first := kept.logged != mover
	kept.logged = mover
	return first
}

// isDeleting tells whether some of what was found has been deleted, and is only not gone yet.
func (m *localState) isDeleting(key string, found exposer.Existing) bool {
	left := m.toRemove(key, found)
	return left.Pod != found.Pod || len(left.Claims) < len(found.Claims)
}

// rebinds notes how far a delivery has come that is not done: what was found has been deleted.
func (m *localState) rebinds(key string, found exposer.Existing) {
	m.markDeleted(key, found, true)
	m.lock.Lock()
	defer m.lock.Unlock()
	m.of(key).reserved = found.Pod == nil && len(found.Claims) == 0
}

func (m *localState) isReserved(key string) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).reserved
}

// rebinding notes that a delivery is tried.
func (m *localState) rebinding(key string, now time.Time) {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	kept.rebinds = cmp.Or(kept.rebinds, now)
}

// rebindingSince is when this agent first tried to deliver; zero if it has not.
func (m *localState) rebindingSince(key string) time.Time {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).rebinds
}

// markRebound notes that what was restored is where it belongs.
func (m *localState) markRebound(key string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.of(key).rebound = true
}

func (m *localState) isRebound(key string) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).rebound
}

// markCleaned notes that nothing is left of the snapshots.
func (m *localState) markCleaned(key string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.of(key).clean = true
}

func (m *localState) isClean(key string) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).clean
}

// toReport tells whether the Event that a resource gets only once is still to be sent, and notes that it is. What is
// for another data mover is never cleaned up, so there are no two.
func (m *localState) toReport(key string) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	first := !kept.reported
	kept.reported = true
	return first
}

// markLocalPod tells whether the pod of a resource is on this node, or was as long as this agent has run.
func (m *localState) markLocalPod(key string, here bool) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	if kept := m.kept[key]; !here {
		return kept != nil && kept.localPod
	}
	m.of(key).localPod = true
	return true
}
