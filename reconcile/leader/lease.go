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

// leaseObserver tracks the Lease for one candidate. It computes the expiry from how long the Lease did not change,
// because the clock of its holder may be wrong.
type leaseObserver struct {
	identity string
	former   string // identity prefix of processes that have ended; may be empty
	clock    clock.Clock

	lock    sync.Mutex
	known   bool // the Lease, or that there is none, was observed
	seen    resourcelock.LeaderElectionRecord
	until   time.Time     // when it expires
	changed chan struct{} // closed and replaced at each change
}

func newLeaseObserver(identity, former string, clk clock.Clock) *leaseObserver {
	return &leaseObserver{identity: identity, former: former, clock: clk, changed: make(chan struct{})}
}

// observe records the current Lease; nil means that there is none.
func (v *leaseObserver) observe(lease *coordinationv1.Lease) {
	record := resourcelock.LeaderElectionRecord{}
	if lease != nil {
		record = *resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	}
	v.lock.Lock()
	defer v.lock.Unlock()
	if v.known && sameRecord(record, v.seen) {
		return // listed again, or labelled: no sign of life from its holder
	}
	v.known, v.seen = true, record
	v.until = v.clock.Now().Add(time.Duration(record.LeaseDurationSeconds) * time.Second)
	close(v.changed)
	v.changed = make(chan struct{})
}

// synced records that the first list is complete. Without a Lease in it, there is none.
func (v *leaseObserver) synced() {
	v.lock.Lock()
	known := v.known
	v.lock.Unlock()
	if !known {
		v.observe(nil)
	}
}

// free reports whether the Lease can be taken, or when it can be if it does not change; zero is never. It also
// returns the observed Lease, because a later version may be held.
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
	return holder != "" && holder != v.identity && !v.hasEnded(holder) && v.clock.Now().Before(v.until)
}

// hasEnded reports whether the holder is a predecessor of this process.
func (v *leaseObserver) hasEnded(holder string) bool {
	return v.former != "" && strings.HasPrefix(holder, v.former)
}

// await waits for a change, at most until the given time unless that is zero.
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

// held returns a channel that closes when another candidate is observed as holder, or when the context ends.
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

// watch watches the single Lease. The reflector of client-go starts again, with backoff, when a watch ends or
// expires. The returned channel closes once the watch has stopped.
func (c *Coordinator) watch(ctx context.Context) <-chan struct{} {
	leases := c.Client.CoordinationV1().Leases(c.Namespace)
	named := func(opts metav1.ListOptions) metav1.ListOptions {
		opts.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, c.Name).String()
		return opts
	}
	update := func(object any, exists bool) {
		if lease, ok := object.(*coordinationv1.Lease); ok && exists {
			c.view.observe(lease)
			return
		}
		c.view.observe(nil)
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
			AddFunc:    func(object any) { update(object, true) },
			UpdateFunc: func(_, object any) { update(object, true) },
			DeleteFunc: func(object any) { update(object, false) },
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
