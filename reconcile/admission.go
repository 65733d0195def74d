package reconcile

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
	Other     AdmissionPhase = iota // it moves, or is over: it needs no place
	Waiting                         // New: it wants a place
	Preparing                       // Accepted or Prepared: it has one
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
	limit    int
	perNode  int
	patience time.Duration
	clock    clock.WithDelayedExecution

	lock    sync.Mutex
	known   map[types.UID]*candidate
	uids    map[string]types.UID // by key: a resource may be made anew before its end is heard of
	early   map[types.UID]func() // who asked before they were noted
	nodes   map[string]*lane
	cluster lane
	going   []*candidate             // who may go now, of those in line
	given   map[types.UID]*candidate // who was told so
	due     time.Time                // when the patience with the first of both ends; zero if there is nobody
	timer   clock.Timer              // for then
}

// candidate is what is known of one transfer.
type candidate struct {
	Entry
	lined  bool      // it is in the line of the whole cluster
	going  bool      // it may go
	since  time.Time // when that began
	given  time.Time // when it was told so, and got the place; else zero
	passed bool      // its patience ended, and it has not changed since
	asks   bool      // it was asked for, and so is in line although it was passed over
	wake   func()    // who asked and was refused
}

// holds tells whether it has a place that its cache does not show yet.
func (c *candidate) holds() bool { return !c.given.IsZero() }

// NewAdmission limits what is prepared in the cluster, and of that on one node; perNode is the largest
// concurrency of any node. With a limit of 0 there is room for everybody; with a perNode of 0 nodes have
// no limit of their own.
func NewAdmission(limit, perNode int, patience time.Duration, clk clock.WithDelayedExecution) *Admission {
	return &Admission{
		limit: limit, perNode: perNode, patience: patience, clock: clk,
		known: map[types.UID]*candidate{}, uids: map[string]types.UID{}, early: map[types.UID]func(){},
		nodes: map[string]*lane{}, given: map[types.UID]*candidate{},
	}
}

// Note takes in what the cache of its kind shows of a transfer, of whichever node, or what this agent wrote
// itself; the cache may then still show the version before, which is ignored.
func (a *Admission) Note(entry Entry) {
	a.change(func() {
		c := a.known[entry.UID]
		switch {
		case c == nil:
			a.remove(a.known[a.uids[entry.Key]])
			c = &candidate{wake: a.early[entry.UID]}
			delete(a.early, entry.UID)
		case same(c.Entry, entry), older(entry, c.Entry):
			return
		default:
			a.withdraw(c)
		}
		c.Entry, c.passed = entry, false
		if entry.Phase != Waiting {
			a.settle(c)
			c.since = time.Time{}
		}
		a.known[entry.UID], a.uids[entry.Key] = c, entry.UID
		a.submit(c)
	})
}

// Forget drops a transfer that is gone.
func (a *Admission) Forget(uid types.UID) {
	a.change(func() {
		delete(a.early, uid)
		a.remove(a.known[uid])
	})
}

// ForgetKey does the same for whatever had that key: resources that are gone leave only their key.
func (a *Admission) ForgetKey(key string) {
	a.change(func() { a.remove(a.known[a.uids[key]]) })
}

// Room tells whether a transfer may be accepted now, and gives it the place if so. Otherwise wake is
// called, once, when it is worth asking again. Ask for what could be accepted at once, and Release what
// was not: whoever is asked for stands in line.
func (a *Admission) Room(uid types.UID, wake func()) bool {
	room := a.limit <= 0
	a.change(func() {
		c := a.known[uid]
		switch {
		case c == nil:
			a.early[uid] = wake // its cache has it, and its Note is on the way
		case c.Phase != Waiting || c.holds() || a.give(c):
			room = true
		default:
			c.wake = wake
		}
	})
	return room
}

// give gives a place to a candidate if it may go.
func (a *Admission) give(c *candidate) bool {
	if c.passed && !c.asks {
		c.asks = true
		a.submit(c)
		a.choose()
	}
	c.asks = true
	if !c.going {
		return false
	}
	a.withdraw(c)
	c.given, c.wake = a.clock.Now(), nil
	a.given[c.UID] = c
	a.submit(c)
	return true
}

// Release gives back the place of a transfer for which the write that accepts it did not happen. Trying
// again and again does not make the patience longer.
func (a *Admission) Release(uid types.UID) {
	a.change(func() {
		if c := a.known[uid]; c != nil && c.Phase == Waiting {
			a.withdraw(c)
			a.settle(c)
			c.passed = c.passed || !c.since.IsZero() && a.clock.Since(c.since) >= a.patience
			a.submit(c)
			if a.choose(); !c.going {
				c.since = time.Time{}
			}
		}
	})
}

// settle ends what asking for a candidate, which is withdrawn, has led to.
func (a *Admission) settle(c *candidate) {
	c.given, c.asks, c.wake = time.Time{}, false, nil
	delete(a.given, c.UID)
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
