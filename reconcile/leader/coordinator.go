// Package leader elects the coordinator and tracks which nodes have a Ready agent. It never touches a transfer.
package leader

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Options configures one candidate of the coordinator election. Zero durations get their default.
type Options struct {
	Client    kubernetes.Interface // only for the Lease, so that no other traffic delays a renewal
	Namespace string               // of Velero
	Name      string               // of the Lease
	Identity  string               // of this process; its predecessor on the same node has another one
	Former    string               // identity prefix of this process and its ended predecessors; may be empty

	Lease  time.Duration // how long candidates wait for a silent holder; 30 s, in whole seconds
	Renew  time.Duration // how long a holder that cannot renew continues; 20 s
	Retry  time.Duration // between two renewals; 5 s
	Spread time.Duration // maximum start jitter of candidates that observe the same; spreadPerAgent for each of Agents
	Agents int           // number of candidates, as far as it is known

	Clock clock.Clock
}

// The start jitter grows with the number of candidates. A candidate campaigns unless it observes the winner first, so the
// requests of an election depend on how many start within that time. The first of them starts after spreadPerAgent on
// average, however many there are.
const (
	spreadPerAgent = 20 * time.Millisecond
	minSpread      = time.Second
	maxSpread      = 30 * time.Second
)

// Coordinator is one candidate for the work that only one agent of the cluster does. While another candidate holds
// the Lease, it has one watch open and sends no other request.
type Coordinator struct {
	Options
	view *leaseObserver
}

// NewCoordinator returns a candidate. It returns an error if the durations do not fit together.
func NewCoordinator(options Options) (*Coordinator, error) {
	for _, duration := range []struct {
		value    *time.Duration
		standard time.Duration
	}{
		{&options.Lease, 30 * time.Second},
		{&options.Renew, 20 * time.Second},
		{&options.Retry, 5 * time.Second},
		{&options.Spread, min(max(time.Duration(options.Agents)*spreadPerAgent, minSpread), maxSpread)},
	} {
		if *duration.value == 0 {
			*duration.value = duration.standard
		}
	}
	c := &Coordinator{Options: options, view: newLeaseObserver(options.Identity, options.Former, options.Clock)}
	if _, err := c.elector(resourcelock.LeaderElectionRecord{}, func(context.Context) {}); err != nil {
		return nil, err
	}
	return c, nil
}

// Run campaigns until the context ends. It calls term while this agent is the coordinator. The context of term ends
// when the agent loses the Lease or stops. The Lease is released only after term has returned. So two terms never
// overlap, unless an agent loses the Lease unnoticed.
func (c *Coordinator) Run(ctx context.Context, term func(ctx context.Context)) error {
	watching, stop := context.WithCancel(ctx)
	done := c.watch(watching)
	defer func() {
		stop()
		<-done
	}()
	for {
		free, ok := c.awaitLease(ctx)
		if !ok {
			return nil
		}
		if err := c.campaign(ctx, free, term); err != nil {
			return err
		}
	}
}

// awaitLease waits until the Lease is free and returns it; ok is false if the context ends first. All candidates
// observe a free Lease at the same moment. So each pauses for its own jitter and checks the Lease a second time
// before it sends a request. A Lease of a predecessor in its pod is free for this candidate alone.
func (c *Coordinator) awaitLease(ctx context.Context) (lease resourcelock.LeaderElectionRecord, ok bool) {
	paused := false
	for ctx.Err() == nil {
		free, lease, until := c.view.free()
		switch {
		case free && (paused || c.view.hasEnded(lease.HolderIdentity)):
			return lease, true
		case free:
			paused = true
			c.pause(ctx, c.startJitter())
		default:
			paused = false
			c.view.await(ctx, until)
		}
	}
	return lease, false
}

// startJitter returns this candidate's delay, a fixed fraction of the spread.
func (c *Coordinator) startJitter() time.Duration {
	sum := sha256.Sum256([]byte(c.Identity))
	return time.Duration(binary.BigEndian.Uint64(sum[:]) % uint64(c.Spread))
}

func (c *Coordinator) pause(ctx context.Context, d time.Duration) {
	timer := c.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

// campaign takes part in one election. It returns when another candidate was elected, or after this one's term.
func (c *Coordinator) campaign(ctx context.Context, free resourcelock.LeaderElectionRecord, term func(context.Context)) error {
	elected := make(chan context.Context, 1)
	elector, err := c.elector(free, func(leading context.Context) { elected <- leading })
	if err != nil {
		return err
	}
	// The election outlives the context: the Lease is renewed while a term stops.
	electing, stop := context.WithCancel(context.WithoutCancel(ctx))
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		elector.Run(electing)
	}()
	select {
	case leading := <-elected:
		c.lead(ctx, leading, term)
	case <-c.view.held(electing):
	case <-ctx.Done():
	}
	stop()
	<-finished
	if elector.IsLeader() {
		c.release(ctx)
		c.pause(ctx, c.Retry) // others first: it may have lost the Lease through its own fault
	}
	return nil
}

// lead runs a term. The term ends with the election, or when the watch shows another holder. An elector whose
// renewals fail does not check for another holder.
func (c *Coordinator) lead(ctx, leading context.Context, term func(context.Context)) {
	leading, end := context.WithCancel(leading)
	defer end()
	defer context.AfterFunc(ctx, end)()
	go func() {
		<-c.view.held(leading)
		end()
	}()
	logger := klog.FromContext(ctx)
	logger.Info("Became coordinator", "identity", c.Identity)
	term(leading)
	logger.Info("Stopped being coordinator", "identity", c.Identity)
}

// minRelease is the shortest limit for the release of the Lease, which takes two requests.
const minRelease = 2 * time.Second

// release releases the Lease, so that the next term starts at once and not only after the expiry.
func (c *Coordinator) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(c.Retry, minRelease))
	defer cancel()
	lock := c.lock()
	record, _, err := lock.Get(ctx)
	if err == nil && record.HolderIdentity == c.Identity {
		now := metav1.NewTime(c.Clock.Now())
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now,
		})
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to release coordinator Lease; it will expire", "after", c.Lease)
	}
}

func (c *Coordinator) lock() *resourcelock.LeaseLock {
	return &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name},
		Client:     c.Client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: c.Identity},
	}
}

func (c *Coordinator) elector(free resourcelock.LeaderElectionRecord, elected func(context.Context)) (*leaderelection.LeaderElector, error) {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: c.Name,
		Lock: expiredLock{c.lock(), free},
		// This process releases the Lease itself after its term.
		ReleaseOnCancel: false,
		LeaseDuration:   c.Lease, RenewDeadline: c.Renew, RetryPeriod: c.Retry,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: elected, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return nil, fmt.Errorf("create leader elector: %w", err)
	}
	return elector, nil
}

// expiredLock is a Lease whose holder was silent for too long or has ended. An elector that reads it for the first
// time would wait for the whole duration once more. Meanwhile it would send a GET every few seconds.
type expiredLock struct {
	*resourcelock.LeaseLock
	expired resourcelock.LeaderElectionRecord
}

// Get implements resourcelock.Interface.
func (e expiredLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := e.LeaseLock.Get(ctx)
	if err == nil && sameRecord(*record, e.expired) {
		record.HolderIdentity = ""
	}
	return record, raw, err
}

// sameRecord reports whether a Lease is unchanged, apart from its labels.
func sameRecord(a, b resourcelock.LeaderElectionRecord) bool {
	return a.HolderIdentity == b.HolderIdentity && a.LeaderTransitions == b.LeaderTransitions && a.RenewTime.Equal(&b.RenewTime)
}

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
	observe := func(object any) {
		lease, _ := object.(*coordinationv1.Lease)
		c.view.observe(lease)
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
			AddFunc:    observe,
			UpdateFunc: func(_, object any) { observe(object) },
			DeleteFunc: func(any) { c.view.observe(nil) },
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
