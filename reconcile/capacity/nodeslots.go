package capacity

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// NodeSlots holds the slots of this agent's node, and of the nodes for whose agents it stands in.
type NodeSlots struct {
	here  string
	own   *Slots
	other int // slots of a node whose configuration is unknown here

	lock   sync.Mutex
	others map[string]*Slots
	where  map[types.UID]*Slots // the Slots in which a resource has a slot or is queued
}

// NewNodeSlots returns the slots of an agent's node; other is the number of slots of any other node.
func NewNodeSlots(here string, slots, other int) *NodeSlots {
	return &NodeSlots{here: here, own: NewSlots(slots), other: other, others: map[string]*Slots{}, where: map[types.UID]*Slots{}}
}

// SetLimits changes the number of slots of this agent's node, and of any other node. Held slots stay held; resources for
// which a slot is free now are enqueued.
func (n *NodeSlots) SetLimits(slots, other int) {
	n.own.SetLimit(slots)
	n.lock.Lock()
	n.other = other
	others := slices.Collect(maps.Values(n.others))
	n.lock.Unlock()
	for _, node := range others {
		node.SetLimit(other)
	}
}

// Own returns the slots of this agent's node.
func (n *NodeSlots) Own() *Slots { return n.own }

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
	if node == n.here {
		return n.own
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	if n.others[node] == nil {
		n.others[node] = NewSlots(n.other)
	}
	return n.others[node]
}
