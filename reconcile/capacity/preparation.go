package capacity

import (
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Preparation paces transfers before they are accepted, if prepareQueueLength is not set: only as many mover pods exist
// as work, or work soon. A place is taken in memory before the transfer is accepted, and held while it is Accepted or
// Prepared. The oldest transfer that waits for a place is next.
//
// No agent needs to know what another one counts: the agent of a node alone accepts for the volumes of its pods, and the
// coordinator alone accepts snapshots and claims, whose node the scheduler chooses.
type Preparation struct {
	node  *Slots     // for volumes of pods of this node
	fleet *Slots     // for all other transfers of the cluster
	ready *NodeSlots // of the fleet's transfers, those that a node prepares ahead: more than that hold no place

	lock  sync.Mutex
	slots int // movers at once on another node; 0: the places are fixed
	nodes int // that have an agent
}

// minFleet is the least number of places for transfers without a node. Snapshots and volumes may take long until they
// are ready, which needs no processor.
const minFleet = 20

// Ahead returns how many transfers a node with that many slots prepares at once. While one round of movers works, the
// next two start: starting a pod takes about as long as moving a small volume.
func Ahead(slots int) int { return 2*slots + 2 }

// FleetAhead returns the same for the transfers of all nodes together.
func FleetAhead(nodes, slots int) int { return max(nodes*Ahead(slots), minFleet) }

// NewPreparation paces the transfers of this node with that many slots; slotsElsewhere is the number on other nodes.
func NewPreparation(slots, slotsElsewhere int) *Preparation {
	ahead := Ahead(slotsElsewhere)
	return &Preparation{
		node: NewSlots(Ahead(slots)), fleet: NewSlots(FleetAhead(1, slotsElsewhere)), ready: NewNodeSlots("", ahead, ahead), slots: slotsElsewhere, nodes: 1,
	}
}

// FixedPreparation allows that many transfers of this node, and as many of all others, whatever SetNodes says.
func FixedPreparation(places int) *Preparation {
	return &Preparation{node: NewSlots(places), fleet: NewSlots(places), ready: NewNodeSlots("", places, places)}
}

// Unpaced returns a Preparation without limits.
func Unpaced() *Preparation { return FixedPreparation(math.MaxInt) }

// SetNodes sets the number of nodes that have an agent.
func (p *Preparation) SetNodes(nodes int) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.nodes = nodes
	if p.slots > 0 {
		p.fleet.SetLimit(FleetAhead(nodes, p.slots))
	}
}

// SetSlots sets the number of slots of this node and of other nodes. Transfers that have a place keep it.
func (p *Preparation) SetSlots(slots, slotsElsewhere int) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.slots == 0 {
		return
	}
	p.slots = slotsElsewhere
	p.node.SetLimit(Ahead(slots))
	p.fleet.SetLimit(FleetAhead(p.nodes, slotsElsewhere))
	p.ready.SetLimits(Ahead(slotsElsewhere), Ahead(slotsElsewhere))
}

// TryAcquire takes a place for a transfer, or queues it and calls enqueue when a place becomes free.
func (p *Preparation) TryAcquire(nodeBound bool, uid types.UID, created time.Time, enqueue func()) bool {
	return p.of(nodeBound).TryAcquire(uid, created, enqueue)
}

// Count counts a transfer that has been accepted, even above the limit.
func (p *Preparation) Count(nodeBound bool, uid types.UID) {
	p.ready.Release(uid)
	p.of(nodeBound).ForceAcquire(uid)
}

// CountReady counts a transfer whose mover waits for a slot of the node. Transfers without a node of their own hold no
// more places than one node prepares ahead: a busy node must not hold up all others. enqueue is called when the transfer
// is to be counted again.
func (p *Preparation) CountReady(nodeBound bool, node string, uid types.UID, created time.Time, enqueue func()) {
	switch {
	case nodeBound:
		p.node.ForceAcquire(uid)
	case p.ready.TryAcquire(node, uid, created, enqueue):
		p.fleet.ForceAcquire(uid)
	default:
		p.fleet.Release(uid)
	}
}

// Release frees the place of a transfer, or its queue position, and enqueues the next ones.
func (p *Preparation) Release(uid types.UID) {
	p.ready.Release(uid)
	p.node.Release(uid)
	p.fleet.Release(uid)
}

func (p *Preparation) of(nodeBound bool) *Slots {
	if nodeBound {
		return p.node
	}
	return p.fleet
}
