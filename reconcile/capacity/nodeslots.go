package capacity

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// NodeSlots are the slots of the node of this agent, and of the nodes for whose agents it stands in.
type NodeSlots struct {
	here  string
	own   *Slots
	other int // slots of a node whose configuration is not known here

	lock   sync.Mutex
	others map[string]*Slots
	where  map[types.UID]*Slots // those in which a resource has a slot or stands in line
}

// NewNodeSlots is for an agent on a node with so many slots; other is how many any other node has.
func NewNodeSlots(here string, slots, other int) *NodeSlots {
	return &NodeSlots{here: here, own: NewSlots(slots), other: other, others: map[string]*Slots{}, where: map[types.UID]*Slots{}}
}

// Own are the slots of this agent's node.
func (p *NodeSlots) Own() *Slots { return p.own }

// ForceAcquire gives a slot to a resource whose mover works already, limit or not.
func (p *NodeSlots) ForceAcquire(node string, uid types.UID) { p.at(node, uid).ForceAcquire(uid) }

// Queue puts a resource in line, if it is not, and tells whether a slot is free for it now. When one
// becomes free for it, wake is called.
func (p *NodeSlots) Queue(node string, uid types.UID, created time.Time, enqueue func()) bool {
	return p.at(node, uid).Queue(uid, created, enqueue)
}

// TryAcquire is Queue, and takes the slot that is free.
func (p *NodeSlots) TryAcquire(node string, uid types.UID, created time.Time, enqueue func()) bool {
	return p.at(node, uid).TryAcquire(uid, created, enqueue)
}

// Release frees the slot of a resource, or its place in a line, and wakes who is next.
func (p *NodeSlots) Release(uid types.UID) {
	p.lock.Lock()
	slots := p.where[uid]
	delete(p.where, uid)
	p.lock.Unlock()
	if slots != nil {
		slots.Release(uid)
	}
}

// at are the slots of a node, and has a resource leave those of any other.
func (p *NodeSlots) at(node string, uid types.UID) *Slots {
	slots := p.On(node)
	p.lock.Lock()
	before := p.where[uid]
	p.where[uid] = slots
	p.lock.Unlock()
	if before != nil && before != slots {
		before.Release(uid)
	}
	return slots
}

// On returns the slots of a node.
func (p *NodeSlots) On(node string) *Slots {
	if node == p.here {
		return p.own
	}
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.others[node] == nil {
		p.others[node] = NewSlots(p.other)
	}
	return p.others[node]
}
