package leader

import (
	"context"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

// leaseObserver is what one candidate has seen of the Lease. Whether it has expired is told by how long it was
// not seen to change, because the clock of its holder may be wrong.
type leaseObserver struct {
	identity string
	former   string // begins the identities of processes that have ended; may be empty
	clock    clock.Clock

	lock    sync.Mutex
	known   bool // at least whether there is one
	seen    resourcelock.LeaderElectionRecord
	until   time.Time     // when it expires
	changed chan struct{} // closed and replaced at each change
}

func newLeaseObserver(identity, former string, clk clock.Clock) *leaseObserver {
	return &leaseObserver{identity: identity, former: former, clock: clk, changed: make(chan struct{})}
}

// saw takes in the Lease as it is now; nil is that there is none.
func (v *leaseObserver) saw(lease *coordinationv1.Lease) {
	record := resourcelock.LeaderElectionRecord{}
	if lease != nil {
		record = *resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	}
	v.lock.Lock()
	defer v.lock.Unlock()
	if v.known && sameRecord(record, v.seen) {
		return // listed again, or labelled: its holder has not shown that it lives
	}
	v.known, v.seen = true, record
	v.until = v.clock.Now().Add(time.Duration(record.LeaseDurationSeconds) * time.Second)
	close(v.changed)
	v.changed = make(chan struct{})
}

// synced says that everything that there was has been seen.
func (v *leaseObserver) synced() {
	v.lock.Lock()
	known := v.known
	v.lock.Unlock()
	if !known {
		v.saw(nil)
	}
}

// free tells whether the Lease can be taken, or when it can if nothing changes; zero is never. It is the Lease of that
// very moment: one that is written later may be held.
func (v *leaseObserver) free() (free bool, lease resourcelock.LeaderElectionRecord, until time.Time) {
	v.lock.Lock()
	defer v.lock.Unlock()
	if !v.known {
		return false, lease, time.Time{}
	}
	return !v.otherHolds(), v.seen, v.until
}

func (v *leaseObserver) otherHolds() bool {
	holder := v.seen.HolderIdentity
	return v.known && holder != "" && holder != v.identity && !v.hasEnded(holder) && v.clock.Now().Before(v.until)
}

// hasEnded tells whether the holder was a process in whose place this one is.
func (v *leaseObserver) hasEnded(holder string) bool {
	return v.former != "" && strings.HasPrefix(holder, v.former)
}

// await waits for a change, until that time at the latest if it is not zero.
func (v *leaseObserver) await(ctx context.Context, until time.Time) {
	v.lock.Lock()
	changed := v.changed
	v.lock.Unlock()
	var expired <-chan time.Time
	if !until.IsZero() {
		timer := v.clock.NewTimer(until.Sub(v.clock.Now()))
		defer timer.Stop()
		expired = timer.C()
	}
	select {
	case <-ctx.Done():
	case <-changed:
	case <-expired:
	}
}

// held is closed as soon as another candidate is seen to hold the Lease, or when the context ends.
func (v *leaseObserver) held(ctx context.Context) <-chan struct{} {
	held := make(chan struct{})
	go func() {
		defer close(held)
		for ctx.Err() == nil {
			v.lock.Lock()
			other, changed := v.otherHolds(), v.changed
			v.lock.Unlock()
			if other {
				return
			}
			select {
			case <-ctx.Done():
			case <-changed:
			}
		}
	}()
	return held
}

// watch follows the one Lease; client-go's reflector begins anew, with pauses that grow, when a watch
// ends or is too old. The channel is closed when it has stopped.
func (c *Coordinator) watch(ctx context.Context) <-chan struct{} {
	leases := c.Client.CoordinationV1().Leases(c.Namespace)
	named := func(opts metav1.ListOptions) metav1.ListOptions {
		opts.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, c.Name).String()
		return opts
	}
	saw := func(object any, exists bool) {
		if lease, ok := object.(*coordinationv1.Lease); ok && lease.Name == c.Name && exists {
			c.view.saw(lease)
			return
		}
		c.view.saw(nil)
	}
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			return leases.List(ctx, named(opts))
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			return leases.Watch(ctx, named(opts))
		},
	}
	_, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(source, c.Client),
		ObjectType:    &coordinationv1.Lease{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(object any) { saw(object, true) },
			UpdateFunc: func(_, object any) { saw(object, true) },
			DeleteFunc: func(object any) { saw(object, false) },
		},
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		controller.RunWithContext(ctx)
	}()
	go func() {
		select {
		case <-controller.HasSyncedChecker().Done():
			c.view.synced()
		case <-ctx.Done():
		}
	}()
	return done
}
