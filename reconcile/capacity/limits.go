package capacity

import (
	"cmp"
	"math"

	"k8s.io/apimachinery/pkg/types"
)

// Limits are the most transfers at once, from their acceptance until their data is moved. They hold beside slots and places. Zero is no limit.
type Limits struct {
	Cluster        int            // in the whole cluster
	StorageClasses map[string]int // that read from or write to volumes of a storage class, by its name
}

// limited are the transfers that count for Limits. Those of Velero's agents count too.
type limited struct {
	cluster *Slots
	classes *NodeSlots // of storage classes instead of nodes
}

func newLimited() limited {
	unlimited := Limits{}
	return limited{NewSlots(unlimited.cluster()), NewNodeSlots(unlimited.of)}
}

func (l Limits) cluster() int { return cmp.Or(l.Cluster, math.MaxInt) }

func (l Limits) of(class string) int { return cmp.Or(l.StorageClasses[class], math.MaxInt) }

func (l limited) set(limits Limits) {
	l.cluster.SetLimit(limits.cluster())
	l.classes.SetLimits(limits.of)
}

// tryAcquire does what Slots.TryAcquire does. A transfer that waits for its storage class does not count in the cluster.
func (l limited) tryAcquire(t Transfer, enqueue func()) bool {
	acquired := l.cluster.TryAcquire(t, enqueue)
	if !acquired || t.StorageClass == "" {
		l.classes.Release(t.UID) // it may be queued for the class of an earlier try
		return acquired
	}
	alike := Transfer{UID: t.UID, Created: t.Created, Restore: t.Restore}
	if !l.classes.TryAcquire(t.StorageClass, alike, enqueue) {
		l.cluster.Release(t.UID)
		return false
	}
	return true
}

// track counts a transfer that has been accepted.
func (l limited) track(t Transfer, stage Stage) {
	if stage == Ended {
		l.release(t.UID)
		return
	}
	l.cluster.ForceAcquire(t)
	if t.StorageClass != "" {
		l.classes.ForceAcquire(t.StorageClass, t.UID)
	}
}

func (l limited) release(uid types.UID) {
	l.cluster.Release(uid)
	l.classes.Release(uid)
}
