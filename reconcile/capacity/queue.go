package capacity

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// queue limits the transfers of the whole cluster that are Accepted or Prepared (prepareQueueLength of the node-agent
// ConfigMap), those of Velero's agents too. The coordinator alone accepts, so it alone has a queue. A transfer is queued
// while it could be accepted at once: one that waits for anything else does not hold up the others. The oldest is next.
// While a restore is queued, backups leave a quarter of the places free, at least one; so they do on a node for which a
// restore is queued.
type queue struct {
	length int

	lock    sync.Mutex
	perNode int // the most places of one node
	held    map[types.UID]string
	onNode  map[string]int // held places by node; "" is no node
	waiting []*candidate   // oldest first
}

type candidate struct {
	Transfer
	enqueue func() // called once it may take a place; nil if it was called
}

func newQueue(length, perNode int) *queue {
	return &queue{length: length, perNode: perNode, held: map[types.UID]string{}, onNode: map[string]int{}}
}

// tryAcquire takes a place, or queues the transfer and calls enqueue when it may take one.
func (q *queue) tryAcquire(t Transfer, enqueue func()) (acquired bool) {
	q.change(func() {
		if _, acquired = q.held[t.UID]; acquired {
			return
		}
		q.drop(t.UID)
		c := &candidate{t, enqueue}
		place, _ := slices.BinarySearchFunc(q.waiting, c, func(a, b *candidate) int {
			return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
		})
		q.waiting = slices.Insert(q.waiting, place, c)
		if acquired = slices.Contains(q.next(), c); acquired {
			q.hold(t)
		}
	})
	return acquired
}

// track counts an accepted transfer until it works, even above the limit.
func (q *queue) track(t Transfer, stage Stage) {
	q.change(func() {
		if stage == Ended || stage == Working {
			q.drop(t.UID)
		} else {
			q.hold(t)
		}
	})
}

// release frees the place of a transfer, or its place in the queue.
func (q *queue) release(uid types.UID) { q.change(func() { q.drop(uid) }) }

// setPerNode changes the places of a node. Transfers that have a place keep it.
func (q *queue) setPerNode(perNode int) { q.change(func() { q.perNode = perNode }) }

// change applies a change, then enqueues the transfers that may take a place now.
func (q *queue) change(how func()) {
	q.lock.Lock()
	how()
	var due []func()
	for _, c := range q.next() {
		if c.enqueue != nil {
			due = append(due, c.enqueue)
			c.enqueue = nil
		}
	}
	q.lock.Unlock()
	for _, enqueue := range due {
		enqueue()
	}
}

func (q *queue) hold(t Transfer) {
	q.drop(t.UID)
	q.held[t.UID] = t.Home
	q.onNode[t.Home]++
}

// drop forgets a transfer.
func (q *queue) drop(uid types.UID) {
	home, held := q.held[uid]
	if !held {
		q.waiting = slices.DeleteFunc(q.waiting, func(c *candidate) bool { return c.UID == uid })
		return
	}
	delete(q.held, uid)
	if q.onNode[home]--; q.onNode[home] == 0 {
		delete(q.onNode, home)
	}
}

// next returns the queued transfers that may take a place now, oldest first.
func (q *queue) next() (admissible []*candidate) {
	taken := len(q.held)
	if taken >= q.length {
		return nil
	}
	onNode, restores, restoresOf := maps.Clone(q.onNode), false, map[string]bool{}
	for _, c := range q.waiting {
		if c.Restore && (c.Home == "" || onNode[c.Home] < q.perNode) {
			restores, restoresOf[c.Home] = true, true
		}
	}
	for _, c := range q.waiting {
		free := taken < share(q.length, c, restores)
		if c.Home != "" {
			free = free && onNode[c.Home] < share(q.perNode, c, restoresOf[c.Home])
		}
		if free {
			admissible = append(admissible, c)
			taken++
			onNode[c.Home]++
		}
	}
	return admissible
}

// share returns how many of the places a transfer may fill. restores reports whether a restore waits for one.
func share(places int, c *candidate, restores bool) int {
	if restores && !c.Restore {
		places -= max(places/4, 1)
	}
	return places
}
