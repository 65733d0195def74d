package reconcile

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Places are the slots of the node of this agent, and of the nodes for whose agents it stands in.
type Places struct {
	here  string
	own   *Slots
	other int // slots of a node whose configuration is not known here

	lock   sync.Mutex
	others map[string]*Slots
	where  map[types.UID]*Slots // those in which a resource has a slot or stands in line
}

// NewPlaces is for an agent on a node with so many slots; other is how many any other node has.
func NewPlaces(here string, slots, other int) *Places {
	return &Places{here: here, own: NewSlots(slots), other: other, others: map[string]*Slots{}, where: map[types.UID]*Slots{}}
}

// Own are the slots of this agent's node.
func (p *Places) Own() *Slots { return p.own }

// Hold gives a slot to a resource whose mover works already, limit or not.
func (p *Places) Hold(node string, uid types.UID) { p.at(node, uid).Hold(uid) }

// Queue puts a resource in line, if it is not, and tells whether a slot is free for it now. When one
// becomes free for it, wake is called.
func (p *Places) Queue(node string, uid types.UID, created time.Time, wake func()) bool {
	return p.at(node, uid).Queue(uid, created, wake)
}

// Take is Queue, and takes the slot that is free.
func (p *Places) Take(node string, uid types.UID, created time.Time, wake func()) bool {
	return p.at(node, uid).Take(uid, created, wake)
}

// Release frees the slot of a resource, or its place in a line, and wakes who is next.
func (p *Places) Release(uid types.UID) {
	p.lock.Lock()
	slots := p.where[uid]
	delete(p.where, uid)
	p.lock.Unlock()
	if slots != nil {
		slots.Release(uid)
	}
}

// at are the slots of a node, and has a resource leave those of any other.
func (p *Places) at(node string, uid types.UID) *Slots {
	slots := p.on(node)
	p.lock.Lock()
	before := p.where[uid]
	p.where[uid] = slots
	p.lock.Unlock()
	if before != nil && before != slots {
		before.Release(uid)
	}
	return slots
}

func (p *Places) on(node string) *Slots {
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
