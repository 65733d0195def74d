package capacity

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Slots are the slots for movers on one node, over all kinds, or the places of a Preparation. The oldest queued transfer
// is next. A slot is taken in memory before the write that uses it, so two workers cannot take the last one.
//
// Places may be limited on each node too. While a restore is queued, backups leave a quarter of the places free, at least
// one; so they do on a node for which a restore is queued.
type Slots struct {
	lock    sync.Mutex
	limit   int
	perNode func(node string) int // the most of one node
	held    map[types.UID]string
	onNode  map[string]int // held ones by node; "" is no node
	waiting []*waiter      // oldest first
}

type waiter struct {
	Transfer
	enqueue func() // called once a slot is free for it; nil if it was called
}

// NewSlots returns the slots of a node on which limit movers may run at once.
func NewSlots(limit int) *Slots {
	return &Slots{limit: limit, perNode: Same(math.MaxInt), held: map[types.UID]string{}, onNode: map[string]int{}}
}

// Limit returns how many movers may run at once.
func (s *Slots) Limit() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.limit
}

// InUse returns how many slots are held. After a restart it may exceed the limit.
func (s *Slots) InUse() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.held)
}

// SetLimit changes how many may run at once. Held slots stay held.
func (s *Slots) SetLimit(limit int) { s.change(func() { s.limit = limit }) }

// setPerNode changes how many slots one node may hold.
func (s *Slots) setPerNode(perNode func(node string) int) { s.change(func() { s.perNode = perNode }) }

// ForceAcquire gives a slot to a transfer that has been accepted, or whose mover runs, even above the limit.
func (s *Slots) ForceAcquire(t Transfer) { s.change(func() { s.hold(t) }) }

// Queue queues a transfer without a slot, and reports whether one is free for it now. It calls enqueue when one becomes
// free.
func (s *Slots) Queue(t Transfer, enqueue func()) (free bool) {
	s.change(func() { free = s.queue(t, enqueue) })
	return free
}

// TryAcquire does what Queue does, and takes a free slot.
func (s *Slots) TryAcquire(t Transfer, enqueue func()) (acquired bool) {
	s.change(func() {
		if acquired = s.queue(t, enqueue); acquired {
			s.hold(t)
		}
	})
	return acquired
}

// Release frees the slot of a transfer, or its queue position.
func (s *Slots) Release(uid types.UID) { s.change(func() { s.drop(uid) }) }

// change applies a change, then enqueues the transfers for which a slot is free now.
func (s *Slots) change(how func()) {
	s.lock.Lock()
	how()
	var due []func()
	for _, w := range s.next() {
		if w.enqueue != nil {
			due = append(due, w.enqueue)
			w.enqueue = nil
		}
	}
	s.lock.Unlock()
	for _, enqueue := range due {
		enqueue()
	}
}

func (s *Slots) queue(t Transfer, enqueue func()) (free bool) {
	if _, held := s.held[t.UID]; held {
		return true
	}
	s.drop(t.UID)
	w := &waiter{t, enqueue}
	place, _ := slices.BinarySearchFunc(s.waiting, w, func(a, b *waiter) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
	})
	s.waiting = slices.Insert(s.waiting, place, w)
	if free = slices.Contains(s.next(), w); free {
		w.enqueue = nil
	}
	return free
}

func (s *Slots) hold(t Transfer) {
	s.drop(t.UID)
	s.held[t.UID] = t.Home
	s.onNode[t.Home]++
}

// drop forgets a transfer.
func (s *Slots) drop(uid types.UID) {
	home, held := s.held[uid]
	if !held {
		s.waiting = slices.DeleteFunc(s.waiting, func(w *waiter) bool { return w.UID == uid })
		return
	}
	delete(s.held, uid)
	if s.onNode[home]--; s.onNode[home] == 0 {
		delete(s.onNode, home)
	}
}

// next returns the queued transfers for which a slot is free, oldest first.
func (s *Slots) next() (admissible []*waiter) {
	taken := len(s.held)
	if taken >= s.limit {
		return nil
	}
	onNode, restores, restoresOf := maps.Clone(s.onNode), false, map[string]bool{}
	for _, w := range s.waiting {
		if w.Restore && (w.Home == "" || onNode[w.Home] < s.perNode(w.Home)) {
			restores, restoresOf[w.Home] = true, true
		}
	}
	for _, w := range s.waiting {
		free := taken < share(s.limit, w, restores)
		if w.Home != "" {
			free = free && onNode[w.Home] < share(s.perNode(w.Home), w, restoresOf[w.Home])
		}
		if free {
			admissible = append(admissible, w)
			taken++
			onNode[w.Home]++
		}
	}
	return admissible
}

// share returns how many of the slots a transfer may fill. restores reports whether a restore waits for one.
func share(slots int, w *waiter, restores bool) int {
	if restores && !w.Restore {
		slots -= max(slots/4, 1)
	}
	return slots
}

// NodeSlots holds the slots of nodes: for an agent, those of its own and of the nodes for whose agents it stands in.
type NodeSlots struct {
	lock  sync.Mutex // held while Slots change: a late ForceAcquire must not follow the Release of the same resource
	limit func(node string) int
	nodes map[string]*Slots
	where map[types.UID]*Slots // the Slots in which a resource has a slot or is queued
}

// NewNodeSlots returns the slots of all nodes; limit returns how many a node has.
func NewNodeSlots(limit func(node string) int) *NodeSlots {
	return &NodeSlots{limit: limit, nodes: map[string]*Slots{}, where: map[types.UID]*Slots{}}
}

// Same gives each node that many slots.
func Same(slots int) func(node string) int { return func(string) int { return slots } }

// SetLimits changes the numbers of slots. Held slots stay held; resources for which a slot is free now are enqueued.
func (n *NodeSlots) SetLimits(limit func(node string) int) {
	n.lock.Lock()
	n.limit = limit
	nodes := maps.Clone(n.nodes)
	n.lock.Unlock()
	for node, slots := range nodes {
		slots.SetLimit(limit(node))
	}
}

// ForceAcquire gives a slot to a resource whose mover already runs, even above the limit.
func (n *NodeSlots) ForceAcquire(node string, uid types.UID) {
	n.lock.Lock()
	defer n.lock.Unlock()
	n.at(node, uid).ForceAcquire(Transfer{UID: uid})
}

// Queue queues a resource, if it is not queued yet, and reports whether a slot is free for it now. It calls enqueue
// when one becomes free.
func (n *NodeSlots) Queue(node string, uid types.UID, created time.Time, enqueue func()) bool {
	n.lock.Lock()
	defer n.lock.Unlock()
	return n.at(node, uid).Queue(Transfer{UID: uid, Created: created}, enqueue)
}

// TryAcquire does what Queue does, and takes a free slot.
func (n *NodeSlots) TryAcquire(node string, t Transfer, enqueue func()) bool {
	n.lock.Lock()
	defer n.lock.Unlock()
	return n.at(node, t.UID).TryAcquire(t, enqueue)
}

// Release frees the slot of a resource, or its queue position, and enqueues the next ones.
func (n *NodeSlots) Release(uid types.UID) {
	n.lock.Lock()
	defer n.lock.Unlock()
	if slots := n.where[uid]; slots != nil {
		delete(n.where, uid)
		slots.Release(uid)
	}
}

// at returns the slots of a node. It releases the resource from any other node.
func (n *NodeSlots) at(node string, uid types.UID) *Slots {
	slots, before := n.on(node), n.where[uid]
	n.where[uid] = slots
	if before != nil && before != slots {
		before.Release(uid)
	}
	return slots
}

// On returns the slots of a node.
func (n *NodeSlots) On(node string) *Slots {
	n.lock.Lock()
	defer n.lock.Unlock()
	return n.on(node)
}

func (n *NodeSlots) on(node string) *Slots {
	if n.nodes[node] == nil {
		n.nodes[node] = NewSlots(n.limit(node))
	}
	return n.nodes[node]
}

// Forget drops the slots of a node that left the cluster, unless a resource holds one or is queued.
func (n *NodeSlots) Forget(node string) {
	n.lock.Lock()
	defer n.lock.Unlock()
	for _, slots := range n.where {
		if slots == n.nodes[node] {
			return
		}
	}
	delete(n.nodes, node)
}
