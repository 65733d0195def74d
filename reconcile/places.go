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
}

// NewPlaces is for an agent on a node with so many slots; other is how many any other node has.
func NewPlaces(here string, slots, other int) *Places {
	return &Places{here: here, own: NewSlots(slots), other: other, others: map[string]*Slots{}}
}

// Own are the slots of this agent's node.
func (p *Places) Own() *Slots { return p.own }

// Hold gives a slot to a resource whose mover works already, limit or not.
func (p *Places) Hold(node string, uid types.UID) { p.on(node).Hold(uid) }

// Queue puts a resource in line, if it is not, and tells whether a slot is free for it now. When one
// becomes free for it, wake is called.
func (p *Places) Queue(node string, uid types.UID, created time.Time, wake func()) bool {
	return p.on(node).Queue(uid, created, wake)
}

// Take is Queue, and takes the slot that is free.
func (p *Places) Take(node string, uid types.UID, created time.Time, wake func()) bool {
	return p.on(node).Take(uid, created, wake)
}

// Release frees the slot of a resource, or its place in a line, and wakes who is next.
func (p *Places) Release(uid types.UID) {
	for _, slots := range p.all() {
		slots.Release(uid)
	}
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

func (p *Places) all() []*Slots {
	p.lock.Lock()
	defer p.lock.Unlock()
	all := append(make([]*Slots, 0, len(p.others)+1), p.own)
	for _, slots := range p.others {
		all = append(all, slots)
	}
	return all
}
