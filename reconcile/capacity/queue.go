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
func (a *Admission) insert(c *pending) {
	switch {
	case c.Phase == Admitted || c.holds():
		a.take(c, 1)
	case c.Phase == Waiting && (!c.skipped || c.requested):
		a.enter(c)
	}
}

// remove undoes insert, so that the transfer can be changed.
func (a *Admission) remove(c *pending) {
	if c.Phase == Admitted || c.holds() {
		a.take(c, -1)
		return
	}
	a.leave(c) // if it is queued
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

func (a *Admission) take(c *pending, places int) {
	a.cluster.taken += places
	if a.bound(c) {
		a.atNode(c.Node, func(node *fifo) { node.taken += places })
	}
}

func (a *Admission) enter(c *pending) {
	if a.bound(c) {
		a.atNode(c.Node, func(node *fifo) { node.enter(c) })
		return
	}
	a.line(c, true)
}

func (a *Admission) leave(c *pending) {
	if a.bound(c) {
		a.atNode(c.Node, func(node *fifo) { node.leave(c) })
		return
	}
	a.line(c, false)
}

// bound reports whether a transfer takes a place of a node.
func (a *Admission) bound(c *pending) bool { return c.Node != "" && a.perNode > 0 }

// atNode changes a node's queue. It then updates the cluster's queue to the transfers for which the node has a place.
func (a *Admission) atNode(name string, how func(*fifo)) {
	node := a.nodes[name]
	if node == nil {
		node = &fifo{}
		a.nodes[name] = node
	}
	before := node.first(a.perNode)
	how(node)
	after := node.first(a.perNode)
	for _, c := range before {
		if !slices.Contains(after, c) {
			a.line(c, false)
		}
	}
	for _, c := range after {
		a.line(c, true)
	}
	if node.empty() {
		delete(a.nodes, name)
	}
}

// line adds a transfer to the cluster's queue, or removes it.
func (a *Admission) line(c *pending, in bool) {
	if c.queued == in {
		return
	}
	c.queued = in
	if in {
		a.cluster.enter(c)
		return
	}
	a.cluster.leave(c)
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
	queued     bool      // in the cluster's queue
	admissible bool      // may be admitted now
	since      time.Time // since when it is admissible
	reserved   time.Time // when its place was reserved; else zero
	skipped    bool      // its timeout expired, and it has not changed since
	requested  bool      // TryAdmit was called, so it is queued although it was skipped
	enqueue    func()    // called once it becomes admissible, after a refusal
}

// holds reports whether a place is reserved that the cache does not show yet.
func (p *pending) holds() bool { return !p.reserved.IsZero() }

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

func (f *fifo) queue(c *pending) *[]*pending {
	if c.Restore {
		return &f.restores
	}
	return &f.backups
}

// enter inserts a transfer by its age.
func (f *fifo) enter(c *pending) {
	queue := f.queue(c)
	place, _ := slices.BinarySearchFunc(*queue, c, byAge)
	*queue = slices.Insert(*queue, place, c)
}

// leave removes a transfer. A missing one is ignored.
func (f *fifo) leave(c *pending) {
	queue := f.queue(c)
	if place, found := slices.BinarySearchFunc(*queue, c, byAge); found {
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
