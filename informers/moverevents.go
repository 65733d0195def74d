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

// mayBeFrom tells whether the mover in that pod can have sent the Event. A mover whose node was lost may still work when
// the next one does. Movers write the resource into their Events, and not their pod, but each has Event objects of its
// own (velero-protocol 3.3).
func (e moverEvent) mayBeFrom(mover *corev1.Pod) bool {
	if mover == nil {
		return true
	}
	here := e.host == "" || mover.Spec.NodeName == "" || e.host == mover.Spec.NodeName
	return here && !e.createdAt.Before(mover.CreationTimestamp.Time)
}

// eventKey names an Event object of a mover.
type eventKey struct{ reason, name string }

// MoverEvents follows what movers say. Movers speak in Kubernetes Events, one per reason, which they
// patch (velero-protocol 3.3); each transfer that is followed has one watch, on its own Events only.
type MoverEvents struct {
	ctx       context.Context // ends all watches
	namespace string
	client    kubernetes.Interface
	clock     clock.Clock

	lock    sync.Mutex
	watched map[types.UID]*eventWatch
	watches sync.WaitGroup
}

// eventWatch is what the movers of one resource said; its lock is that of MoverEvents.
type eventWatch struct {
	stop context.CancelFunc
	last map[eventKey]moverEvent
}

// NewMoverEvents follows movers in Velero's namespace until the context ends.
func NewMoverEvents(ctx context.Context, client kubernetes.Interface, namespace string, clk clock.Clock) *MoverEvents {
	return &MoverEvents{ctx: ctx, namespace: namespace, client: client, clock: clk, watched: map[types.UID]*eventWatch{}}
}

// Watch opens the watch for a resource, once; wake is called when its mover says something.
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

// Forget closes the watch of a resource and drops what its mover said.
func (m *MoverEvents) Forget(uid types.UID) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if talk := m.watched[uid]; talk != nil {
		talk.stop()
		delete(m.watched, uid)
	}
}

// Last is the last Event of that reason about the resource that the mover in that pod can have sent, and when, to the
// second and by the clock of its node. Without a pod, any mover can.
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

// moverReasons begin the reasons of all Events by which movers speak (velero-protocol 3.3).
const moverReasons = "Data-Path-"

// A watch ends after some minutes, or with the API server; these are the pauses before the next one.
const (
	firstPause = 100 * time.Millisecond
	longPause  = 30 * time.Second
)

func (m *MoverEvents) watch(ctx context.Context, uid types.UID, talk *eventWatch, enqueue func()) {
	logger := klog.FromContext(ctx)
	pause := firstPause
	for ctx.Err() == nil {
		// Without a resource version a watch begins with what exists, so no list is needed.
		events, err := m.client.CoreV1().Events(m.namespace).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String(),
		})
		if err == nil {
			if m.observe(events, talk, enqueue) {
				pause = firstPause
			}
		} else if ctx.Err() == nil {
			logger.Error(err, "Watch Events of a mover", "uid", uid, "again", pause)
		}
		select {
		case <-ctx.Done():
		case <-m.clock.After(pause):
		}
		pause = min(2*pause, longPause)
	}
}

// observe takes in Events until the watch ends, and tells whether there was any.
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

// record keeps what is new. Each mover has Events of its own, and a second one for a reason of which it was silent for
// ten minutes; a watch may begin with them in any order.
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
