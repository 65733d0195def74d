package capacity

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Slots are the slots for movers on one node, over all kinds, or the places of a Preparation. The oldest queued resource
// is next. A slot is taken in memory before the write that uses it, so two workers cannot take the last one.
type Slots struct {
	limit int

	lock  sync.Mutex
	held  map[types.UID]struct{}
	queue []*waiter // oldest first
}

type waiter struct {
	uid       types.UID
	createdAt time.Time
	enqueue   func()
}

// NewSlots returns the slots of a node on which limit movers may run at once.
func NewSlots(limit int) *Slots {
	return &Slots{limit: limit, held: map[types.UID]struct{}{}}
}

// Limit returns how many movers may run at once.
func (s *Slots) Limit() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.limit
}

// SetLimit changes how many may run at once, and enqueues those that may start now.
func (s *Slots) SetLimit(limit int) {
	s.lock.Lock()
	var next []func()
	if s.limit != limit {
		s.limit = limit
		next = s.next()
	}
	s.lock.Unlock()
	for _, enqueue := range next {
		enqueue()
	}
}

// InUse returns how many slots are held. After a restart it may exceed the limit.
func (s *Slots) InUse() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.held)
}

// ForceAcquire gives a slot to a resource whose mover already runs, even above the limit.
func (s *Slots) ForceAcquire(uid types.UID) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.remove(uid)
	s.held[uid] = struct{}{}
}

// Queue queues a resource, if it is not queued yet, and reports whether a slot is free for it now. It calls enqueue
// when one becomes free.
func (s *Slots) Queue(uid types.UID, created time.Time, enqueue func()) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.mayStart(uid, created, enqueue)
}

// TryAcquire does what Queue does, and takes a free slot.
func (s *Slots) TryAcquire(uid types.UID, created time.Time, enqueue func()) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	if !s.mayStart(uid, created, enqueue) {
		return false
	}
	s.remove(uid)
	s.held[uid] = struct{}{}
	return true
}

// Release frees the slot of a resource, or its queue position, and enqueues the next ones.
func (s *Slots) Release(uid types.UID) {
	s.lock.Lock()
	_, held := s.held[uid]
	delete(s.held, uid)
	var next []func()
	if s.remove(uid) || held {
		next = s.next()
	}
	s.lock.Unlock()
	for _, enqueue := range next {
		enqueue()
	}
}

// next returns the enqueue functions of those for which a slot is free.
func (s *Slots) next() (enqueues []func()) {
	for _, w := range s.queue[:min(s.free(), len(s.queue))] {
		enqueues = append(enqueues, w.enqueue)
	}
	return enqueues
}

func (s *Slots) free() int { return max(s.limit-len(s.held), 0) }

func (s *Slots) mayStart(uid types.UID, created time.Time, enqueue func()) bool {
	if _, has := s.held[uid]; has {
		return true
	}
	place := slices.IndexFunc(s.queue, func(w *waiter) bool { return w.uid == uid })
	if place < 0 {
		place = s.insert(&waiter{uid: uid, createdAt: created, enqueue: enqueue})
	}
	return place < s.free()
}

// insert queues a waiter by its age and returns how many are before it.
func (s *Slots) insert(w *waiter) int {
	place, _ := slices.BinarySearchFunc(s.queue, w, func(a, b *waiter) int {
		return cmp.Or(a.createdAt.Compare(b.createdAt), cmp.Compare(a.uid, b.uid))
	})
	s.queue = slices.Insert(s.queue, place, w)
	return place
}

// remove removes a waiter and reports whether there was one.
func (s *Slots) remove(uid types.UID) bool {
	before := len(s.queue)
	s.queue = slices.DeleteFunc(s.queue, func(w *waiter) bool { return w.uid == uid })
	return len(s.queue) < before
}

// NodeSlots holds the slots of nodes: for an agent, those of its own and of the nodes for whose agents it stands in.
type NodeSlots struct {
	lock  sync.Mutex
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
func (n *NodeSlots) ForceAcquire(node string, uid types.UID) { n.at(node, uid).ForceAcquire(uid) }

// Queue queues a resource, if it is not queued yet, and reports whether a slot is free for it now. It calls enqueue
// when one becomes free.
func (n *NodeSlots) Queue(node string, uid types.UID, created time.Time, enqueue func()) bool {
	return n.at(node, uid).Queue(uid, created, enqueue)
}

// TryAcquire does what Queue does, and takes a free slot.
func (n *NodeSlots) TryAcquire(node string, uid types.UID, created time.Time, enqueue func()) bool {
	return n.at(node, uid).TryAcquire(uid, created, enqueue)
}

// Release frees the slot of a resource, or its queue position, and enqueues the next ones.
func (n *NodeSlots) Release(uid types.UID) {
	n.lock.Lock()
	slots := n.where[uid]
	delete(n.where, uid)
	n.lock.Unlock()
	if slots != nil {
		slots.Release(uid)
	}
}

// at returns the slots of a node. It releases the resource from any other node.
func (n *NodeSlots) at(node string, uid types.UID) *Slots {
	slots := n.On(node)
	n.lock.Lock()
	before := n.where[uid]
	n.where[uid] = slots
	n.lock.Unlock()
	if before != nil && before != slots {
		before.Release(uid)
	}
	return slots
}

// On returns the slots of a node.
func (n *NodeSlots) On(node string) *Slots {
	n.lock.Lock()
	defer n.lock.Unlock()
	if n.nodes[node] == nil {
		n.nodes[node] = NewSlots(n.limit(node))
	}
	return n.nodes[node]
}
