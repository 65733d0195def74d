package informers

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// moverEvent is an Event object that a mover sent and patches.
type moverEvent struct {
	message   string
	at        time.Time // by the clock of the mover's node
	host      string    // the mover's node
	createdAt time.Time // by the clock of the API server
}

// mayBeFrom reports whether the mover in that pod can have sent the Event. A mover on a lost node may still run
// beside its replacement. The Events of movers name the resource, not the pod, but each mover has Event objects of
// its own (velero-protocol 3.3).
func (m moverEvent) mayBeFrom(mover *corev1.Pod) bool {
	if mover == nil {
		return true
	}
	here := m.host == "" || mover.Spec.NodeName == "" || m.host == mover.Spec.NodeName
	return here && !m.createdAt.Before(mover.CreationTimestamp.Time)
}

// eventKey identifies an Event object of a mover.
type eventKey struct{ reason, name string }

// MoverEvents watches the Events of movers. A mover reports in one Event per reason and patches it (velero-protocol
// 3.3). Each watched transfer has one watch, only on its own Events.
//
// The API server has no watch cache for Events. A watch without a resourceVersion makes it read every Event of the
// namespace from etcd. So a watch starts at a known version wherever earlier Events are known or cannot exist. Only an
// Event tells it: large clusters keep Events in an etcd of their own (--etcd-servers-overrides).
type MoverEvents struct {
	ctx       context.Context // ends all watches
	namespace string
	client    kubernetes.Interface
	clock     clock.Clock

	listing chan struct{} // full during a request for the current version

	lock    sync.Mutex
	watched map[types.UID]*eventWatch
	watches sync.WaitGroup
	version string    // of the last known change of Events in the namespace
	knownAt time.Time // when it was the last
}

// eventWatch holds the last Events of one resource's movers.
type eventWatch struct {
	stop    context.CancelFunc
	last    map[eventKey]moverEvent // MoverEvents.lock guards it
	version string                  // after which the next watch starts, empty: with the existing Events; for its goroutine
}

// NewMoverEvents watches movers in Velero's namespace until the context ends.
func NewMoverEvents(ctx context.Context, client kubernetes.Interface, namespace string, clk clock.Clock) *MoverEvents {
	return &MoverEvents{ctx: ctx, namespace: namespace, client: client, clock: clk, listing: make(chan struct{}, 1), watched: map[types.UID]*eventWatch{}}
}

// Watch opens the watch of a resource whose mover may have sent Events already, once. It calls enqueue after each Event
// of the mover.
func (m *MoverEvents) Watch(uid types.UID, enqueue func()) { m.start(uid, "", enqueue) }

// WatchNext opens the watch of a resource whose mover is about to start, once. It calls enqueue after each Event that
// the mover sends from now on.
func (m *MoverEvents) WatchNext(ctx context.Context, uid types.UID, enqueue func()) {
	m.start(uid, m.current(ctx), enqueue) //nolint:contextcheck // the watch outlives the caller
}

func (m *MoverEvents) start(uid types.UID, version string, enqueue func()) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.watched[uid] != nil || m.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(m.ctx)
	watched := &eventWatch{stop: stop, last: map[eventKey]moverEvent{}, version: version}
	m.watched[uid] = watched
	m.watches.Go(func() { m.watch(ctx, uid, watched, enqueue) })
}

const (
	// versionAge is how long a version is used to start watches. The API server replays the changes since then.
	versionAge = 10 * time.Second
	// versionTimeout limits the request for the current version, for which a mover waits.
	versionTimeout = 5 * time.Second
)

// current returns a recent version of the Events in the namespace; empty if the API server does not tell it. A burst of
// transfers needs one small request in versionAge at most.
func (m *MoverEvents) current(ctx context.Context) string {
	select {
	case m.listing <- struct{}{}:
		defer func() { <-m.listing }()
	case <-ctx.Done():
		return ""
	}
	m.lock.Lock()
	version, fresh := m.version, m.clock.Since(m.knownAt) < versionAge
	m.lock.Unlock()
	if fresh {
		return version
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	one, err := m.client.CoreV1().Events(m.namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Failed to read the version of Events", "err", err)
		return ""
	}
	m.lock.Lock()
	defer m.lock.Unlock()
	m.version, m.knownAt = one.ResourceVersion, m.clock.Now()
	return m.version
}

// Forget closes the watch of a resource and drops its Events.
func (m *MoverEvents) Forget(uid types.UID) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if watched := m.watched[uid]; watched != nil {
		watched.stop()
		delete(m.watched, uid)
	}
}

// Last returns the last Event of that reason about the resource that the mover in that pod can have sent. at is by
// the clock of the mover's node, to the second. Without a pod, Events of any mover count.
func (m *MoverEvents) Last(uid types.UID, reason string, mover *corev1.Pod) (message string, at time.Time, ok bool) {
	m.lock.Lock()
	defer m.lock.Unlock()
	watched := m.watched[uid]
	if watched == nil {
		return "", time.Time{}, false
	}
	for key, event := range watched.last {
		if key.reason == reason && event.mayBeFrom(mover) && (!ok || event.at.After(at)) {
			message, at, ok = event.message, event.at, true
		}
	}
	return message, at, ok
}

// Wait returns when every watch is closed, after the context has ended.
func (m *MoverEvents) Wait() { m.watches.Wait() }

// moverReasons is the prefix of the reasons of all mover Events (velero-protocol 3.3).
const moverReasons = "Data-Path-"

// Minimum and maximum backoff. A watch ends after some minutes, or when the API server stops.
const (
	minBackoff = 100 * time.Millisecond
	maxBackoff = 30 * time.Second
)

func (m *MoverEvents) watch(ctx context.Context, uid types.UID, watched *eventWatch, enqueue func()) {
	logger := klog.FromContext(ctx)
	backoff := minBackoff
	for ctx.Err() == nil {
		events, err := m.client.CoreV1().Events(m.namespace).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String(), ResourceVersion: watched.version,
		})
		if err == nil {
			var observed bool
			if observed, err = m.observe(events, watched, enqueue); observed {
				backoff = minBackoff
			}
		}
		if err != nil && ctx.Err() == nil {
			if watched.version != "" { // it may have expired; the existing Events include all that were missed
				watched.version = ""
				continue
			}
			logger.Error(err, "Failed to watch mover Events", "uid", uid, "retryAfter", backoff)
		}
		select {
		case <-ctx.Done():
		case <-m.clock.After(backoff):
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// observe records Events until the watch ends. It reports whether there was any, and the error that ended the watch.
func (m *MoverEvents) observe(events watch.Interface, watched *eventWatch, enqueue func()) (observed bool, err error) {
	defer events.Stop()
	for change := range events.ResultChan() {
		if change.Type == watch.Error {
			return observed, apierrors.FromObject(change.Object)
		}
		event, ok := change.Object.(*corev1.Event)
		if !ok {
			continue
		}
		m.advance(watched, event.ResourceVersion)
		if change.Type == watch.Deleted || !strings.HasPrefix(event.Reason, moverReasons) {
			continue
		}
		observed = true
		if m.record(watched, event) {
			enqueue()
		}
	}
	return observed, nil
}

// advance records the version of a change. A watch that started without a version returns the existing Events first, in
// any order, so it tells no version.
func (m *MoverEvents) advance(watched *eventWatch, version string) {
	if watched.version == "" || version == "" {
		return
	}
	watched.version = version
	m.lock.Lock()
	defer m.lock.Unlock()
	m.version, m.knownAt = version, m.clock.Now()
}

// record keeps an Event unless a later version of it is known. Each mover has Events of its own, and a second Event
// for a reason after ten silent minutes. A new watch may return them in any order.
func (m *MoverEvents) record(watched *eventWatch, event *corev1.Event) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	key := eventKey{reason: event.Reason, name: event.Name}
	if before, ok := watched.last[key]; ok && event.LastTimestamp.Time.Before(before.at) {
		return false
	}
	watched.last[key] = moverEvent{
		message: event.Message, at: event.LastTimestamp.Time, host: event.Source.Host, createdAt: event.CreationTimestamp.Time,
	}
	return true
}
