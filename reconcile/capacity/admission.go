// Package capacity limits concurrency: which transfers may be prepared in the cluster, and which may move data on a
// node. It never reads or changes an object.
package capacity

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/api"
)

// Admission decides which transfers of the whole cluster may be prepared next (prepareQueueLength of the node-agent
// ConfigMap). All agents compute the same from their caches, so nobody keeps a shared count:
//
//   - A transfer is queued while it waits and its node, if it has one, has a free place for it.
//   - The queue is ordered by age. While a restore is queued, backups leave a quarter of the places free, at least
//     one. The same holds for the places of a node while a restore waits there.
//   - A transfer that is admissible but not accepted within the timeout is skipped until its resourceVersion changes.
//     It keeps its queue position and is admitted again on request.
//   - TryAdmit reserves a place until Observe sees the write, Release returns it, or the timeout expires.
type Admission struct {
	limit        int
	perNode      int
	admitTimeout time.Duration
	clock        clock.WithDelayedExecution

	lock          sync.Mutex
	known         map[types.UID]*pending
	uids          map[string]types.UID // by key: a resource may be created again before its deletion is observed
	preregistered map[types.UID]func() // enqueue functions of unobserved transfers
	nodes         map[string]*fifo
	cluster       fifo
	admissible    []*pending             // queued transfers that may be admitted now
	reserved      map[types.UID]*pending // transfers with a reserved place
	due           time.Time              // when the first timeout of both expires; zero if there is none
	timer         clock.Timer            // fires at due
}

// NewAdmission limits the prepared transfers of the cluster, and those of one node. perNode is the largest
// concurrency of any node. A limit of 0 admits everything; a perNode of 0 sets no limit per node.
func NewAdmission(limit, perNode int, admitTimeout time.Duration, clk clock.WithDelayedExecution) *Admission {
	return &Admission{
		limit: limit, perNode: perNode, admitTimeout: admitTimeout, clock: clk,
		known: map[types.UID]*pending{}, uids: map[string]types.UID{}, preregistered: map[types.UID]func(){},
		nodes: map[string]*fifo{}, reserved: map[types.UID]*pending{},
	}
}

// SetPerNode changes the number of prepared transfers of one node. Transfers that have a place keep it.
func (a *Admission) SetPerNode(perNode int) {
	a.change(func() {
		for _, c := range a.known {
			a.remove(c)
		}
		a.perNode = perNode
		for _, c := range a.known {
			a.insert(c)
		}
	})
}

// Observe records a transfer of any node, from the cache of its kind or after this agent's own write. The cache may
// still return the version before that write; older versions are ignored.
func (a *Admission) Observe(entry Entry) {
	a.change(func() {
		c := a.known[entry.UID]
		switch {
		case c == nil:
			a.forget(a.known[a.uids[entry.Key]])
			c = &pending{enqueue: a.preregistered[entry.UID]}
			delete(a.preregistered, entry.UID)
		case same(c.Entry, entry), api.IsNewer(c.Version, entry.Version):
			return
		default:
			a.remove(c)
		}
		c.Entry, c.skipped = entry, false
		if entry.Phase != Waiting {
			a.clearReservation(c)
			c.since = time.Time{}
		}
		a.known[entry.UID], a.uids[entry.Key] = c, entry.UID
		a.insert(c)
	})
}

// Forget drops a deleted transfer.
func (a *Admission) Forget(uid types.UID) {
	a.change(func() {
		delete(a.preregistered, uid)
		a.forget(a.known[uid])
	})
}

// TryAdmit reports whether a transfer may be accepted now, and reserves a place if so. Otherwise it calls enqueue
// once, when a new attempt is worthwhile. Call it only for a transfer that could be accepted at once, and Release a
// place that was not used: a requested transfer is queued.
func (a *Admission) TryAdmit(uid types.UID, enqueue func()) bool {
	room := a.limit <= 0
	a.change(func() {
		c := a.known[uid]
		switch {
		case c == nil:
			a.preregistered[uid] = enqueue // the cache has it; its Observe is on the way
		case c.Phase != Waiting || c.holds() || a.reserve(c):
			room = true
		default:
			c.enqueue = enqueue
		}
	})
	return room
}

// reserve reserves a place for a transfer that is admissible.
func (a *Admission) reserve(c *pending) bool {
	if c.skipped && !c.requested {
		c.requested = true
		a.insert(c)
		a.recompute()
	}
	if !c.admissible {
		return false
	}
	a.remove(c)
	c.reserved, c.enqueue = a.clock.Now(), nil
	a.reserved[c.UID] = c
	a.insert(c)
	return true
}

// Release returns the place of a transfer whose accepting write did not happen. Repeated attempts do not extend the
// timeout.
func (a *Admission) Release(uid types.UID) {
	a.change(func() {
		if c := a.known[uid]; c != nil {
			a.remove(c)
			a.clearReservation(c)
			c.skipped = c.skipped || !c.since.IsZero() && a.clock.Since(c.since) >= a.admitTimeout
			a.insert(c)
			if a.recompute(); !c.admissible {
				c.since = time.Time{}
			}
		}
	})
}

// clearReservation resets the reservation and the request of a transfer. Call remove first.
func (a *Admission) clearReservation(c *pending) {
	c.reserved, c.requested, c.enqueue = time.Time{}, false, nil
	delete(a.reserved, c.UID)
}
