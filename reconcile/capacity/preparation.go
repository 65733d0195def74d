// Package capacity limits concurrency: which transfers may be prepared in the cluster, and which may move data on a
// node. It never reads or changes an object.
package capacity

import (
	"cmp"
	"maps"
	"math"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
)

// Preparation limits the transfers that are accepted. A place is taken in memory before the transfer is accepted.
//
// With prepareQueueLength, it is a queue of the whole cluster, and Accepted and Prepared transfers hold its places, those of
// Velero's agents too. The coordinator alone accepts, so it alone has a queue. A transfer is queued while it could be accepted
// at once: one that waits for anything else does not hold up the others.
//
// Without, it paces transfers: only as many mover pods exist as work, or work soon, and a place is held until the mover ends.
// Volumes of pods have places on their node. Snapshots and claims, whose node the scheduler chooses, have places in the fleet.
//
// In both cases, a transfer also counts for Limits until its data is moved.
type Preparation struct {
	queue   *Slots // nil without prepareQueueLength
	limited limited

	clock clock.PassiveClock
	homes *NodeSlots // for volumes of pods, on their nodes
	fleet *Slots     // for transfers without a node
	share *NodeSlots // of the fleet's places, those for movers that run on one node: more of them hold no place

	lock      sync.Mutex
	fixed     bool
	slots     map[string]int // movers at once on a node, as far as they are known
	most      int            // the largest number of them
	nodes     int            // that have an agent
	nodePace  pace
	fleetPace pace
	tracked   map[types.UID]tracked
}

// Transfer is what matters of a transfer for its place.
type Transfer struct {
	UID     types.UID
	Created time.Time
	Restore bool
	Veleros bool   // an agent of Velero accepted it: it counts in a queue, and is not paced
	Home    string // the node of its volume; empty if the scheduler chooses the node

	StorageClass string // of the volume that a data mover moves; empty for volumes of pods, and if it is not known
}

// Stage is what an accepted transfer does, as far as it matters for places.
type Stage int

// Stages, in their order. A mover that is lost and replaced goes back to Starting.
const (
	Ended    Stage = iota // needs no place
	Starting              // accepted
	Late                  // accepted too long ago: something of its own may keep its mover from running, so it holds no place
	Ready                 // its mover waits for a slot
	Working               // its mover moves data
)

type tracked struct {
	stage Stage
	since time.Time // when it began to start or to work; zero if that was not seen
}

// pace is how long transfers take until their mover may work, and how long it works: moving averages of the last ones.
type pace struct{ start, work time.Duration }

// ahead returns how many movers wait for the slots of a node. A mover that waits reads its resource from the API server
// twice a second (Velero, pkg/podvolume/backup_micro_service.go), so they are twice as many as end on average while the
// next one starts: movers do not end evenly. None waits if a slot without a mover is idle for less than a fiftieth of the
// time. Before anything is known, they are as many as short movers need.
func (p pace) ahead(slots int) int {
	most := 2*slots + 2
	switch {
	case p.work == 0:
		return most
	case 50*p.start < p.work:
		return 0
	}
	return min(int(math.Ceil(2*float64(slots)*float64(p.start)/float64(p.work))), most)
}

// average adds a duration to a moving average, which is zero before the first one.
func average(of *time.Duration, took time.Duration) {
	if *of == 0 {
		*of = took
	}
	*of += (took - *of) / 4
}

// NewPreparation paces transfers on nodes of which each has at most that many slots.
func NewPreparation(slots int, clk clock.PassiveClock) *Preparation {
	p := FixedPreparation(0)
	p.clock, p.fixed, p.nodes = clk, false, 1
	p.SetSlots(slots)
	return p
}

// FixedPreparation allows that many transfers on each node, and as many without a node, at any pace.
func FixedPreparation(places int) *Preparation {
	return &Preparation{
		clock: clock.RealClock{}, fixed: true, homes: NewNodeSlots(Same(places)), fleet: NewSlots(places), share: NewNodeSlots(Same(places)),
		limited: newLimited(), slots: map[string]int{}, tracked: map[types.UID]tracked{},
	}
}

// NewQueue queues transfers for that many places in the cluster. Those of volumes of pods hold no more of them than their node has
// slots; most is the largest number of slots of a node.
func NewQueue(length, most int) *Preparation {
	p := FixedPreparation(math.MaxInt)
	p.queue = NewSlots(length)
	p.SetSlots(most)
	return p
}

// SetNodes sets the number of nodes that have an agent.
func (p *Preparation) SetNodes(nodes int) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.nodes = nodes
	p.setLimits()
}

// SetSlots sets the largest number of slots of a node, and forgets the nodes that have fewer. Transfers that have a place keep
// it.
func (p *Preparation) SetSlots(most int) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.most = most
	clear(p.slots)
	p.setLimits()
}

// SetSlotsOf sets the number of slots of one node; 0 if it is not known.
func (p *Preparation) SetSlotsOf(node string, slots int) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.slots[node] == slots {
		return
	}
	p.slots[node] = slots
	p.setLimits()
}

// ForgetSlots forgets the slots of all nodes but one.
func (p *Preparation) ForgetSlots(but string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	maps.DeleteFunc(p.slots, func(node string, _ int) bool { return node != but })
	p.setLimits()
}

// Forget drops what is known of a node that left the cluster. Transfers that have a place there keep it.
func (p *Preparation) Forget(node string) {
	p.lock.Lock()
	delete(p.slots, node)
	p.setLimits()
	p.lock.Unlock()
	p.homes.Forget(node)
	p.share.Forget(node)
}

// KnowsSlotsOf reports whether SetSlotsOf was called for a node since SetSlots, or places do not follow from the slots.
func (p *Preparation) KnowsSlotsOf(node string) bool {
	p.lock.Lock()
	defer p.lock.Unlock()
	return p.fixed && p.queue == nil || p.slots[node] > 0
}

// SlotsOf returns the number that SetSlotsOf was called with for a node since SetSlots, or 0.
func (p *Preparation) SlotsOf(node string) int {
	p.lock.Lock()
	defer p.lock.Unlock()
	return p.slots[node]
}

// setLimits follows the slots and the pace.
func (p *Preparation) setLimits() {
	known, most, pace := maps.Clone(p.slots), p.most, p.nodePace
	slots := func(node string) int { return cmp.Or(known[node], most) }
	if p.queue != nil {
		p.queue.setPerNode(slots)
	}
	if p.fixed {
		return
	}
	share := p.most + p.fleetPace.ahead(p.most)
	p.fleet.SetLimit(max(p.nodes, 1) * share)
	p.share.SetLimits(Same(share))
	p.homes.SetLimits(func(node string) int { return slots(node) + pace.ahead(slots(node)) })
}

// SetLimits changes the limits. Transfers that have been accepted go on.
func (p *Preparation) SetLimits(limits Limits) { p.limited.set(limits) }

// TryAcquire takes a place for a transfer that could be accepted at once, or queues it and calls enqueue when a place
// becomes free. It waits for one thing at a time: what is free for it, others may take meanwhile. Only its turn in its storage class
// it keeps, or each transfer of that class would be enqueued in vain: they all need the same place.
func (p *Preparation) TryAcquire(t Transfer, enqueue func()) bool {
	if !p.takePlace(t, enqueue) {
		p.limited.cluster.Release(t.UID)
		return false
	}
	if !p.limited.tryAcquire(t, enqueue) {
		p.releasePlace(t.UID)
		return false
	}
	return true
}

func (p *Preparation) takePlace(t Transfer, enqueue func()) bool {
	switch {
	case p.queue != nil:
		return p.queue.TryAcquire(t, enqueue)
	case t.Home != "":
		return p.homes.TryAcquire(t.Home, t, enqueue)
	}
	return p.fleet.TryAcquire(t, enqueue)
}

// Track counts a transfer that has been accepted, even above the limit, while its stage needs a place. Transfers without a
// node of their own that wait for a slot hold no more places than the share of one node: a busy node must not hold up all
// others. enqueue is called when such a transfer is to be tracked again. node is that of the mover.
func (p *Preparation) Track(t Transfer, stage Stage, node string, enqueue func()) {
	p.limited.track(t, stage)
	if p.queue != nil {
		if stage == Ended || stage == Working {
			p.queue.Release(t.UID)
		} else {
			p.queue.ForceAcquire(t)
		}
		return
	}
	if t.Veleros {
		stage = Ended
	}
	p.learn(t.UID, stage, t.Home)
	switch {
	case stage == Ended || stage == Late:
		p.free(t.UID)
		return
	case t.Home != "":
		p.homes.ForceAcquire(t.Home, t.UID)
		return
	case stage == Starting:
		p.share.Release(t.UID)
	case stage == Working:
		p.share.ForceAcquire(node, t.UID)
	case !p.share.TryAcquire(node, Transfer{UID: t.UID, Created: t.Created}, enqueue):
		p.fleet.Release(t.UID)
		return
	}
	p.fleet.ForceAcquire(Transfer{UID: t.UID})
}

// Release frees the place of a transfer, or its queue position, and enqueues the next ones.
func (p *Preparation) Release(uid types.UID) {
	p.limited.release(uid)
	p.releasePlace(uid)
}

func (p *Preparation) releasePlace(uid types.UID) {
	if p.queue != nil {
		p.queue.Release(uid)
		return
	}
	p.lock.Lock()
	delete(p.tracked, uid)
	p.lock.Unlock()
	p.free(uid)
}

func (p *Preparation) free(uid types.UID) {
	p.homes.Release(uid)
	p.share.Release(uid)
	p.fleet.Release(uid)
}

// learn measures how long a transfer took to start, or to work, and adapts the limits.
func (p *Preparation) learn(uid types.UID, stage Stage, home string) {
	p.lock.Lock()
	defer p.lock.Unlock()
	before, known := p.tracked[uid]
	now, pace := p.clock.Now(), &p.fleetPace
	if home != "" {
		pace = &p.nodePace
	}
	took := time.Duration(0)
	if !before.since.IsZero() {
		took = now.Sub(before.since)
	}
	switch {
	case before.stage == stage || stage == Late && before.stage == Starting:
		return // a late one goes on to start
	case took > 0 && stage == Ready && before.stage == Starting:
		average(&pace.start, took)
		p.setLimits()
	case took > 0 && stage == Ended && before.stage == Working:
		average(&pace.work, took)
		p.setLimits()
	}
	p.tracked[uid] = tracked{stage: stage}
	if known || stage == Starting {
		p.tracked[uid] = tracked{stage, now}
	}
	if stage == Ended {
		delete(p.tracked, uid)
	}
}
