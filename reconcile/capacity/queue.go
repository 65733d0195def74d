package capacity

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// change applies a change, then enqueues the refused transfers that became admissible.
func (a *Admission) change(how func()) {
	if a.limit <= 0 {
		return
	}
	a.lock.Lock()
	before := a.admissible
	how()
	a.recompute()
	a.stamp(before)
	a.scheduleTimeout()
	enqueues := a.enqueues()
	a.lock.Unlock()
	for _, enqueue := range enqueues {
		enqueue()
	}
}

// insert counts a transfer as the holder of a place, or queues it.
func (a *Admission) insert(c *pending) { a.update(c, (*fifo).insert) }

// remove undoes insert, so that the transfer can be changed.
func (a *Admission) remove(c *pending) { a.update(c, (*fifo).remove) }

// update applies insert or remove. A transfer that has a place counts in the cluster and on its node. A queued one that
// needs a place of its node is in the queue of the cluster only while the node has a place for it.
func (a *Admission) update(c *pending, how func(*fifo, *pending)) {
	if c.occupies() || !a.bound(c) {
		how(&a.cluster, c)
	}
	if a.bound(c) {
		a.updateNode(c, how)
	}
}

func (a *Admission) forget(c *pending) {
	if c == nil {
		return
	}
	a.remove(c)
	delete(a.reserved, c.UID)
	delete(a.known, c.UID)
	delete(a.uids, c.Key)
}

// bound reports whether a transfer takes a place of a node.
func (a *Admission) bound(c *pending) bool { return c.Node != "" && a.perNode > 0 }

// updateNode changes a node's queue. It then updates the cluster's queue to the transfers for which the node has a place.
func (a *Admission) updateNode(c *pending, how func(*fifo, *pending)) {
	node := a.nodes[c.Node]
	if node == nil {
		node = &fifo{}
		a.nodes[c.Node] = node
	}
	before := node.first(a.perNode)
	how(node, c)
	after := node.first(a.perNode)
	for _, other := range before {
		if !slices.Contains(after, other) {
			a.cluster.dequeue(other)
		}
	}
	for _, other := range after {
		a.cluster.enqueue(other)
	}
	if node.empty() {
		delete(a.nodes, c.Node)
	}
}

// recompute determines which transfers are admissible.
func (a *Admission) recompute() {
	for _, c := range a.admissible {
		c.admissible = false
	}
	a.admissible = a.cluster.first(a.limit)
	for _, c := range a.admissible {
		c.admissible = true
	}
}

// stamp updates since when each transfer is admissible. before lists those that were admissible until now.
func (a *Admission) stamp(before []*pending) {
	for _, c := range before {
		if !c.admissible && !c.holds() {
			c.since = time.Time{}
		}
	}
	for _, c := range a.admissible {
		if c.since.IsZero() {
			c.since = a.clock.Now()
		}
	}
}

// enqueues returns the enqueue functions of refused transfers that are admissible now, each once.
func (a *Admission) enqueues() []func() {
	var due []func()
	for _, c := range a.admissible {
		if c.enqueue != nil {
			due = append(due, c.enqueue)
			c.enqueue = nil
		}
	}
	return due
}

// holding returns the transfers that occupy a place: the admissible and the reserved ones.
func (a *Admission) holding() []*pending {
	return slices.AppendSeq(slices.Clone(a.admissible), maps.Values(a.reserved))
}

// onTimeout returns when a transfer that occupies a place is skipped.
func (a *Admission) onTimeout(c *pending) time.Time {
	if c.holds() {
		return c.reserved.Add(a.admitTimeout)
	}
	return c.since.Add(a.admitTimeout)
}

// scheduleTimeout sets the timer to the first timeout.
func (a *Admission) scheduleTimeout() {
	var due time.Time
	for _, c := range a.holding() {
		if ends := a.onTimeout(c); due.IsZero() || ends.Before(due) {
			due = ends
		}
	}
	if due.Equal(a.due) {
		return
	}
	if a.due = due; a.timer != nil {
		a.timer.Stop()
	}
	if !due.IsZero() {
		a.timer = a.clock.AfterFunc(due.Sub(a.clock.Now()), a.skipExpired)
	}
}

// skipExpired skips every transfer whose timeout has expired.
func (a *Admission) skipExpired() {
	a.change(func() {
		a.due = time.Time{} // the timer has fired
		for _, c := range a.holding() {
			if a.clock.Now().Before(a.onTimeout(c)) {
				continue
			}
			a.remove(c)
			a.clearReservation(c)
			c.skipped, c.since = true, time.Time{} // it is not inserted again
		}
	})
}

// AdmissionPhase is the state of a transfer for the limit on prepared transfers in the cluster.
type AdmissionPhase int

// Phases of a transfer for Admission.
const (
	Uncounted AdmissionPhase = iota // moving data or terminal: needs no place
	Waiting                         // New: waits for a place
	Admitted                        // Accepted or Prepared: occupies a place
)

// Entry is what Admission needs to know of one transfer of any kind.
type Entry struct {
	UID     types.UID
	Key     string // kind, namespace and name
	Version string // resourceVersion: a change admits a skipped transfer again
	Created time.Time
	Restore bool
	Node    string // where the volume is mounted; empty if any node will do or it is unknown
	Phase   AdmissionPhase
}

// pending is the state of one transfer.
type pending struct {
	Entry
	admissible bool      // may be admitted now
	since      time.Time // since when it is admissible
	reserved   time.Time // when its place was reserved; else zero
	skipped    bool      // its timeout expired, and it has not changed since
	requested  bool      // TryAdmit was called, so it is queued although it was skipped
	enqueue    func()    // called once it becomes admissible, after a refusal
}

// holds reports whether a place is reserved that the cache does not show yet.
func (p *pending) holds() bool { return !p.reserved.IsZero() }

// occupies reports whether a transfer has a place.
func (p *pending) occupies() bool { return p.Phase == Admitted || p.holds() }

// same reports whether two entries are equal.
func same(a, b Entry) bool {
	a.Created = b.Created // it never changes, but may be in another time zone
	return a == b
}

// fifo is the queue for the places of the cluster or of a node, with the number of taken places. It is plain data:
// the admissible transfers follow from it and from the number of places.
type fifo struct {
	taken    int
	backups  []*pending // oldest first
	restores []*pending // oldest first
}

// byAge orders transfers by creation, then UID: the same in every agent.
func byAge(a, b *pending) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
}

// insert counts a transfer as the holder of a place, or queues it.
func (f *fifo) insert(c *pending) {
	switch {
	case c.occupies():
		f.taken++
	case c.Phase == Waiting && (!c.skipped || c.requested):
		f.enqueue(c)
	}
}

// remove undoes insert.
func (f *fifo) remove(c *pending) {
	if c.occupies() {
		f.taken--
		return
	}
	f.dequeue(c) // if it is queued
}

// position returns the queue of a transfer, its place there by age, and whether it is queued.
func (f *fifo) position(c *pending) (queue *[]*pending, place int, queued bool) {
	queue = &f.backups
	if c.Restore {
		queue = &f.restores
	}
	place, queued = slices.BinarySearchFunc(*queue, c, byAge)
	return queue, place, queued
}

// enqueue queues a transfer by its age, if it is not queued yet.
func (f *fifo) enqueue(c *pending) {
	if queue, place, queued := f.position(c); !queued {
		*queue = slices.Insert(*queue, place, c)
	}
}

// dequeue removes a transfer from its queue, if it is queued.
func (f *fifo) dequeue(c *pending) {
	if queue, place, queued := f.position(c); queued {
		*queue = slices.Delete(*queue, place, place+1)
	}
}

func (f *fifo) empty() bool { return f.taken == 0 && len(f.backups)+len(f.restores) == 0 }

// first returns the transfers that may be admitted now, by age; places is the total number. While a restore is
// queued, backups leave a quarter of the places free, at least one: people wait for restores.
func (f *fifo) first(places int) []*pending {
	forBackups := places
	if len(f.restores) > 0 {
		forBackups -= max(places/4, 1)
	}
	var admissible []*pending
	backups, restores := f.backups, f.restores
	for taken := f.taken; taken < places; taken++ {
		backup := len(backups) > 0 && taken < forBackups
		switch {
		case len(restores) > 0 && (!backup || byAge(restores[0], backups[0]) < 0):
			admissible, restores = append(admissible, restores[0]), restores[1:]
		case backup:
			admissible, backups = append(admissible, backups[0]), backups[1:]
		default:
			return admissible
		}
	}
	return admissible
}
