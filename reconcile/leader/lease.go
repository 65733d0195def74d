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
func (l *leaseObserver) observe(lease *coordinationv1.Lease) {
	record := resourcelock.LeaderElectionRecord{}
	if lease != nil {
		record = *resourcelock.LeaseSpecToLeaderElectionRecord(&lease.Spec)
	}
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.known && sameRecord(record, l.seen) {
		return // listed again, or labelled: no sign of life from its holder
	}
	l.known, l.seen = true, record
	l.until = l.clock.Now().Add(time.Duration(record.LeaseDurationSeconds) * time.Second)
	close(l.changed)
	l.changed = make(chan struct{})
}

// synced records that the first list is complete. Without a Lease in it, there is none.
func (l *leaseObserver) synced() {
	l.lock.Lock()
	known := l.known
	l.lock.Unlock()
	if !known {
		l.observe(nil)
	}
}

// free reports whether the Lease can be taken, or when it can be if it does not change; zero is never. It also
// returns the observed Lease, because a later version may be held.
func (l *leaseObserver) free() (free bool, lease resourcelock.LeaderElectionRecord, until time.Time) {
	l.lock.Lock()
	defer l.lock.Unlock()
	if !l.known {
		return false, lease, time.Time{}
	}
	return !l.otherHolds(), l.seen, l.until
}

func (l *leaseObserver) otherHolds() bool {
	holder := l.seen.HolderIdentity
	return holder != "" && holder != l.identity && !l.hasEnded(holder) && l.clock.Now().Before(l.until)
}

// hasEnded reports whether the holder is a predecessor of this process.
func (l *leaseObserver) hasEnded(holder string) bool {
	return l.former != "" && strings.HasPrefix(holder, l.former)
}

// await waits for a change, at most until the given time unless that is zero.
func (l *leaseObserver) await(ctx context.Context, until time.Time) {
	l.lock.Lock()
	changed := l.changed
	l.lock.Unlock()
	var expired <-chan time.Time
	if !until.IsZero() {
		timer := l.clock.NewTimer(until.Sub(l.clock.Now()))
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
func (l *leaseObserver) held(ctx context.Context) <-chan struct{} {
	held := make(chan struct{})
	go func() {
		defer close(held)
		for ctx.Err() == nil {
			l.lock.Lock()
			other, changed := l.otherHolds(), l.changed
			l.lock.Unlock()
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
