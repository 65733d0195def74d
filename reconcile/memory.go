package reconcile

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// memory is what the caches cannot tell about the resources of one kind. All of it can be lost: a
// restarted agent starts a cancel's grace anew, tries to expose once more, and reads its writes back.
type memory[T transfer.Object] struct {
	lock sync.Mutex
	kept map[string]*recollection[T] // by key
}

type recollection[T any] struct {
	written   T         // our last write, until the cache has it
	ahead     bool      // the cache has not
	canceled  time.Time // when a cancel was first seen
	waits     time.Time // since when it has been seen not to be eligible; zero if it was when last looked at
	activity  activity  // of its mover, as it was last seen to change
	activeAt  time.Time // when that was, by the clock of this agent
	obstacle  string    // what the last attempt to expose or to deliver met
	made      int       // movers, counted up to the one that was made last
	removed   []types.UID
	forced    types.UID // the mover that was deleted by force
	ending    types.UID // the mover whose pod was seen to be deleting
	endingAt  time.Time // and when that was first
	podGone   bool      // the mover was deleted, and none was made since
	gone      []string  // names of the claims that were deleted
	logged    types.UID // the mover whose log was kept last
	podHere   bool      // the pod whose volume is moved was seen on this node
	delivered bool
	reserved  bool      // all that delivery waits for is that its target is bound
	delivers  time.Time // when this agent first tried to deliver
	alone     time.Time // since when no other restore to its pod works; zero if one does
	clean     bool      // nothing is left of its snapshots
	reported  bool      // an Event says for which other data mover it is, or what its clean-up waits for
	since     time.Time // when the phase began, to better than the second of the API's timestamps
}

func (m *memory[T]) of(key string) *recollection[T] {
	if m.kept == nil {
		m.kept = map[string]*recollection[T]{}
	}
	if m.kept[key] == nil {
		m.kept[key] = &recollection[T]{}
	}
	return m.kept[key]
}

// wrote remembers a write, so that nothing is decided on the version before it.
func (m *memory[T]) wrote(key string, written T) {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	kept.written, kept.ahead = written, true
}

// newest is the cached object, or our own write if the cache does not have it yet.
func (m *memory[T]) newest(key string, cached T) T {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	if kept.ahead && kept.written.GetUID() == cached.GetUID() && newer(kept.written, cached) {
		return kept.written
	}
	kept.written, kept.ahead = cached, false
	return cached
}

// newer tells whether a is a later version of a resource than b (KEP-5504).
func newer(a, b metav1.Object) bool {
	order, err := resourceversion.CompareResourceVersion(a.GetResourceVersion(), b.GetResourceVersion())
	return err == nil && order > 0
}

// exposed remembers how the last attempt to expose ended; the prepare timeout says it.
func (m *memory[T]) exposed(key string, restarts int, waits string, err error) {
	m.met(key, waits, err)
	if waits != "" || err != nil {
		return
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	kept.made, kept.podGone = restarts+1, false
}

// met remembers what is waited for, or in the way.
func (m *memory[T]) met(key, waits string, err error) {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	kept.obstacle = waits
	if err != nil {
		kept.obstacle = strings.TrimSpace(err.Error())
	}
}

// exposedIn tells whether this agent has made the mover that follows so many restarts.
func (m *memory[T]) exposedIn(key string, restarts int) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).made == restarts+1
}

// hasExposed tells whether this agent has made a mover, for which a snapshot has to be handed over first.
func (m *memory[T]) hasExposed(key string) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).made > 0
}

func (m *memory[T]) obstacle(key string) string {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).obstacle
}

// isOther tells whether a resource of that key was known that is not this one: its name is used again.
func (m *memory[T]) isOther(key string, uid types.UID) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	var none T
	kept := m.kept[key]
	return kept != nil && kept.written != none && kept.written.GetUID() != uid
}

// forget drops a resource and returns its last version, if it was known.
func (m *memory[T]) forget(key string) (gone T, known bool) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if kept := m.kept[key]; kept != nil {
		gone, known = kept.written, true
	}
	delete(m.kept, key)
	return gone, known
}

// toRemove is what is still to be deleted of what was found: the caches may show for a while what is gone.
func (m *memory[T]) toRemove(key string, found exposer.Found) exposer.Found {
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

// wasRemoved notes what was deleted. Of what no cache had nobody hears that it is gone, so it is looked for again.
func (m *memory[T]) wasRemoved(key string, found exposer.Found, cached bool) {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	kept.podGone = kept.podGone || cached && found.Pod != nil
	if found.Pod != nil {
		kept.removed = append(kept.removed, found.Pod.UID)
	}
	if found.Pod != nil && found.Lost {
		kept.forced = found.Pod.UID
	}
	for _, claim := range found.Claims {
		kept.removed = append(kept.removed, claim.UID)
		if cached {
			kept.gone = append(kept.gone, claim.Name)
		}
	}
}

// unseen is what was not deleted by this agent: whether the mover is, and which of the claims.
func (m *memory[T]) unseen(key string, claims []string) (pod bool, unseen []string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	return !kept.podGone, slices.DeleteFunc(slices.Clone(claims), func(name string) bool { return slices.Contains(kept.gone, name) })
}

// toLog tells whether the log of a mover is still to be kept, and notes that it is.
func (m *memory[T]) toLog(key string, mover types.UID) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	first := kept.logged != mover
	kept.logged = mover
	return first
}

// isGoing tells whether some of what was found has been deleted, and is only not gone yet.
func (m *memory[T]) isGoing(key string, found exposer.Found) bool {
	left := m.toRemove(key, found)
	return left.Pod != found.Pod || len(left.Claims) < len(found.Claims)
}

// delivers notes how far a delivery has come that is not done: what was found has been deleted.
func (m *memory[T]) delivers(key string, found exposer.Found) {
	m.wasRemoved(key, found, true)
	m.lock.Lock()
	defer m.lock.Unlock()
	m.of(key).reserved = found.Pod == nil && len(found.Claims) == 0
}

func (m *memory[T]) isReserved(key string) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).reserved
}

// delivering notes that a delivery is tried.
func (m *memory[T]) delivering(key string, now time.Time) {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	kept.delivers = cmp.Or(kept.delivers, now)
}

// deliveringSince is when this agent first tried to deliver; zero if it has not.
func (m *memory[T]) deliveringSince(key string) time.Time {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).delivers
}

// wasDelivered notes that what was restored is where it belongs.
func (m *memory[T]) wasDelivered(key string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.of(key).delivered = true
}

func (m *memory[T]) isDelivered(key string) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).delivered
}

// wasCleaned notes that nothing is left of the snapshots.
func (m *memory[T]) wasCleaned(key string) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.of(key).clean = true
}

func (m *memory[T]) isClean(key string) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.of(key).clean
}

// toReport tells whether the Event that a resource gets only once is still to be sent, and notes that it is. What is
// for another data mover is never cleaned up, so there are no two.
func (m *memory[T]) toReport(key string) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	kept := m.of(key)
	first := !kept.reported
	kept.reported = true
	return first
}

// podWasHere tells whether the pod of a resource is on this node, or was as long as this agent has run.
func (m *memory[T]) podWasHere(key string, here bool) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	if kept := m.kept[key]; !here {
		return kept != nil && kept.podHere
	}
	m.of(key).podHere = true
	return true
}
