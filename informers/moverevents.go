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

// moverEvent is the last Event of one reason that a mover sent.
type moverEvent struct {
	message string
	at      time.Time
}

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

// eventWatch is what one mover said; its lock is that of MoverEvents.
type eventWatch struct {
	stop context.CancelFunc
	last map[string]moverEvent // by reason
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
	talk := &eventWatch{stop: stop, last: map[string]moverEvent{}}
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

// Last is the last thing that the resource's mover said with that reason, and when, to the second and
// by the clock of its node.
func (m *MoverEvents) Last(uid types.UID, reason string) (message string, at time.Time, ok bool) {
	m.lock.Lock()
	defer m.lock.Unlock()
	talk := m.watched[uid]
	if talk == nil {
		return "", time.Time{}, false
	}
	last, ok := talk.last[reason]
	return last.message, last.at, ok
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

// record keeps what is new. A mover that says the same again after ten minutes makes a second Event
// for it, and a watch may begin with both in any order.
func (m *MoverEvents) record(talk *eventWatch, event *corev1.Event) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	if before, ok := talk.last[event.Reason]; ok && event.LastTimestamp.Time.Before(before.at) {
		return false
	}
	talk.last[event.Reason] = moverEvent{message: event.Message, at: event.LastTimestamp.Time}
	return true
}
