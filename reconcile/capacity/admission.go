// Package capacity counts: which transfers may be prepared in the cluster, and which may move data on a node. It never
// reads or changes an object.
package capacity

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/utils/clock"
)

// AdmissionPhase is what a transfer means for the limit on what is prepared in the whole cluster.
type AdmissionPhase int

// The phases of a transfer as Admission tells them apart.
const (
	Uncounted AdmissionPhase = iota // it moves, or is over: it needs no place
	Waiting                         // New: it wants a place
	Admitted                        // Accepted or Prepared: it has one
)

// Entry is what Admission has to know of one transfer of any kind.
type Entry struct {
	UID     types.UID
	Key     string // kind, namespace and name
	Version string // resourceVersion: whoever was passed over has a chance again when it changes
	Created time.Time
	Restore bool
	Node    string // where the volume is mounted; empty if any node will do, or if it is not known
	Phase   AdmissionPhase
}

// Admission tells which transfers may be prepared next in the whole cluster (prepareQueueLength of the
// node-agent ConfigMap). Every agent computes the same from its caches, so nobody has to keep a count:
//
//   - A transfer is in line while it waits and its node, if it has one, has a place for it.
//   - Those in line go by age. While a restore is in line backups leave a quarter of the places free, at
//     least one, and likewise of the places of a node while a restore waits there.
//   - Who may go and does not, for as long as the patience, is passed over until it changes. It loses its
//     claim to a place, not its age: an agent that asks for it again can take it and so gets the place.
//   - Who was told that there is room has the place from then on, until Note shows what became of it,
//     Release gives it back, or the patience is over.
type Admission struct {
	limit        int
	perNode      int
	admitTimeout time.Duration
	clock        clock.WithDelayedExecution

	lock          sync.Mutex
	known         map[types.UID]*pending
	uids          map[string]types.UID // by key: a resource may be made anew before its end is heard of
	preregistered map[types.UID]func() // who asked before they were noted
	nodes         map[string]*fifo
	cluster       fifo
	admissible    []*pending             // who may go now, of those in line
	reserved      map[types.UID]*pending // who was told so
	due           time.Time              // when the patience with the first of both ends; zero if there is nobody
	timer         clock.Timer            // for then
}

// pending is what is known of one transfer.
type pending struct {
	Entry
	lined      bool      // it is in the line of the whole cluster
	admissible bool      // it may go
	since      time.Time // when that began
	reserved   time.Time // when it was told so, and got the place; else zero
	skipped    bool      // its patience ended, and it has not changed since
	requested  bool      // it was asked for, and so is in line although it was passed over
	enqueue    func()    // who asked and was refused
}

// holds tells whether it has a place that its cache does not show yet.
func (c *pending) holds() bool { return !c.reserved.IsZero() }

// NewAdmission limits what is prepared in the cluster, and of that on one node; perNode is the largest
// concurrency of any node. With a limit of 0 there is room for everybody; with a perNode of 0 nodes have
// no limit of their own.
func NewAdmission(limit, perNode int, patience time.Duration, clk clock.WithDelayedExecution) *Admission {
	return &Admission{
		limit: limit, perNode: perNode, admitTimeout: patience, clock: clk,
		known: map[types.UID]*pending{}, uids: map[string]types.UID{}, preregistered: map[types.UID]func(){},
		nodes: map[string]*fifo{}, reserved: map[types.UID]*pending{},
	}
}

// Observe takes in what the cache of its kind shows of a transfer, of whichever node, or what this agent wrote
// itself; the cache may then still show the version before, which is ignored.
func (a *Admission) Observe(entry Entry) {
	a.change(func() {
		c := a.known[entry.UID]
		switch {
		case c == nil:
			a.forget(a.known[a.uids[entry.Key]])
			c = &pending{enqueue: a.preregistered[entry.UID]}
			delete(a.preregistered, entry.UID)
		case same(c.Entry, entry), older(entry, c.Entry):
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

// Forget drops a transfer that is gone.
func (a *Admission) Forget(uid types.UID) {
	a.change(func() {
		delete(a.preregistered, uid)
		a.forget(a.known[uid])
	})
}

// ForgetKey does the same for whatever had that key: resources that are gone leave only their key.
func (a *Admission) ForgetKey(key string) {
	a.change(func() { a.forget(a.known[a.uids[key]]) })
}

// TryAdmit tells whether a transfer may be accepted now, and gives it the place if so. Otherwise wake is
// called, once, when it is worth asking again. Ask for what could be accepted at once, and Release what
// was not: whoever is asked for stands in line.
func (a *Admission) TryAdmit(uid types.UID, enqueue func()) bool {
	room := a.limit <= 0
	a.change(func() {
		c := a.known[uid]
		switch {
		case c == nil:
			a.preregistered[uid] = enqueue // its cache has it, and its Note is on the way
		case c.Phase != Waiting || c.holds() || a.give(c):
			room = true
		default:
			c.enqueue = enqueue
		}
	})
	return room
}

// give gives a place to a candidate if it may go.
func (a *Admission) give(c *pending) bool {
	if c.skipped && !c.requested {
		c.requested = true
		a.insert(c)
		a.recompute()
	}
	c.requested = true
	if !c.admissible {
		return false
	}
	a.remove(c)
	c.reserved, c.enqueue = a.clock.Now(), nil
	a.reserved[c.UID] = c
	a.insert(c)
	return true
}

// Release gives back the place of a transfer for which the write that accepts it did not happen. Trying
// again and again does not make the patience longer.
func (a *Admission) Release(uid types.UID) {
	a.change(func() {
		if c := a.known[uid]; c != nil && c.Phase == Waiting {
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

// clearReservation ends what asking for a candidate, which is withdrawn, has led to.
func (a *Admission) clearReservation(c *pending) {
	c.reserved, c.requested, c.enqueue = time.Time{}, false, nil
	delete(a.reserved, c.UID)
}

// same tells whether nothing has changed.
func same(a, b Entry) bool {
	created := a.Created.Equal(b.Created)
	a.Created, b.Created = time.Time{}, time.Time{}
	return created && a == b
}

// older tells whether an entry is of an earlier version than another of the same resource (KEP-5504).
func older(a, b Entry) bool {
	order, err := resourceversion.CompareResourceVersion(a.Version, b.Version)
	return err == nil && order < 0
}
