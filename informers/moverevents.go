package informers

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
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
func (e moverEvent) mayBeFrom(mover *corev1.Pod) bool {
	if mover == nil {
		return true
	}
	here := e.host == "" || mover.Spec.NodeName == "" || e.host == mover.Spec.NodeName
	return here && !e.createdAt.Before(mover.CreationTimestamp.Time)
}

// eventKey identifies an Event object of a mover.
type eventKey struct{ reason, name string }

// MoverEvents watches the Events of movers. A mover reports in one Event per reason and patches it (velero-protocol
// 3.3). Each watched transfer has one watch, only on its own Events.
type MoverEvents struct {
	ctx       context.Context // ends all watches
	namespace string
	client    kubernetes.Interface
	clock     clock.Clock

	lock    sync.Mutex
	watched map[types.UID]*eventWatch
	watches sync.WaitGroup
}

// eventWatch holds the last Events of one resource's movers. MoverEvents.lock guards it.
type eventWatch struct {
	stop context.CancelFunc
	last map[eventKey]moverEvent
}

// NewMoverEvents watches movers in Velero's namespace until the context ends.
func NewMoverEvents(ctx context.Context, client kubernetes.Interface, namespace string, clk clock.Clock) *MoverEvents {
	return &MoverEvents{ctx: ctx, namespace: namespace, client: client, clock: clk, watched: map[types.UID]*eventWatch{}}
}

// Watch opens the watch of a resource, once. It calls enqueue after each new Event of the mover.
func (m *MoverEvents) Watch(uid types.UID, enqueue func()) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.watched[uid] != nil || m.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(m.ctx)
	talk := &eventWatch{stop: stop, last: map[eventKey]moverEvent{}}
	m.watched[uid] = talk
	m.watches.Go(func() { m.watch(ctx, uid, talk, enqueue) })
}

// Forget closes the watch of a resource and drops its Events.
func (m *MoverEvents) Forget(uid types.UID) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if talk := m.watched[uid]; talk != nil {
		talk.stop()
		delete(m.watched, uid)
	}
}

// Last returns the last Event of that reason about the resource that the mover in that pod can have sent. at is by
// the clock of the mover's node, to the second. Without a pod, Events of any mover count.
func (m *MoverEvents) Last(uid types.UID, reason string, mover *corev1.Pod) (message string, at time.Time, ok bool) {
	m.lock.Lock()
	defer m.lock.Unlock()
	talk := m.watched[uid]
	if talk == nil {
		return "", time.Time{}, false
	}
	for key, event := range talk.last {
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
	firstPause = 100 * time.Millisecond
	longPause  = 30 * time.Second
)

func (m *MoverEvents) watch(ctx context.Context, uid types.UID, talk *eventWatch, enqueue func()) {
	logger := klog.FromContext(ctx)
	pause := firstPause
	for ctx.Err() == nil {
		// A watch without a resourceVersion starts with the existing objects, so no list is needed.
		events, err := m.client.CoreV1().Events(m.namespace).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String(),
		})
		if err == nil {
			if m.observe(events, talk, enqueue) {
				pause = firstPause
			}
		} else if ctx.Err() == nil {
			logger.Error(err, "Failed to watch mover Events", "uid", uid, "retryAfter", pause)
		}
		select {
		case <-ctx.Done():
		case <-m.clock.After(pause):
		}
		pause = min(2*pause, longPause)
	}
}

// observe records Events until the watch ends. It reports whether there was any.
func (m *MoverEvents) observe(events watch.Interface, talk *eventWatch, enqueue func()) bool {
	defer events.Stop()
	observed := false
	for change := range events.ResultChan() {
		event, ok := change.Object.(*corev1.Event)
		if !ok || change.Type == watch.Deleted || !strings.HasPrefix(event.Reason, moverReasons) {
			continue
		}
		observed = true
		if m.record(talk, event) {
			enqueue()
		}
	}
	return observed
}

// record keeps an Event unless a later version of it is known. Each mover has Events of its own, and a second Event
// for a reason after ten silent minutes. A new watch may return them in any order.
func (m *MoverEvents) record(talk *eventWatch, event *corev1.Event) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	key := eventKey{reason: event.Reason, name: event.Name}
	if before, ok := talk.last[key]; ok && event.LastTimestamp.Time.Before(before.at) {
		return false
	}
	talk.last[key] = moverEvent{
		message: event.Message, at: event.LastTimestamp.Time, host: event.Source.Host, createdAt: event.CreationTimestamp.Time,
	}
	return true
}
