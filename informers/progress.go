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

// said is the last Event of one reason that a mover sent.
type said struct {
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

	lock     sync.Mutex
	followed map[types.UID]*conversation
	watches  sync.WaitGroup
}

// conversation is what one mover said; its lock is that of MoverEvents.
type conversation struct {
	stop context.CancelFunc
	last map[string]said // by reason
}

// NewMoverEvents follows movers in Velero's namespace until the context ends.
func NewMoverEvents(ctx context.Context, client kubernetes.Interface, namespace string, clk clock.Clock) *MoverEvents {
	return &MoverEvents{ctx: ctx, namespace: namespace, client: client, clock: clk, followed: map[types.UID]*conversation{}}
}

// Follow opens the watch for a resource, once; wake is called when its mover says something.
func (m *MoverEvents) Follow(uid types.UID, wake func()) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.followed[uid] != nil || m.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(m.ctx)
	talk := &conversation{stop: stop, last: map[string]said{}}
	m.followed[uid] = talk
	m.watches.Go(func() { m.listen(ctx, uid, talk, wake) })
}

// Forget closes the watch of a resource and drops what its mover said.
func (m *MoverEvents) Forget(uid types.UID) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if talk := m.followed[uid]; talk != nil {
		talk.stop()
		delete(m.followed, uid)
	}
}

// Last is the last thing that the resource's mover said with that reason, and when, to the second and
// by the clock of its node.
func (m *MoverEvents) Last(uid types.UID, reason string) (message string, at time.Time, ok bool) {
	m.lock.Lock()
	defer m.lock.Unlock()
	talk := m.followed[uid]
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

func (m *MoverEvents) listen(ctx context.Context, uid types.UID, talk *conversation, wake func()) {
	logger := klog.FromContext(ctx)
	pause := firstPause
	for ctx.Err() == nil {
		// Without a resource version a watch begins with what exists, so no list is needed.
		events, err := m.client.CoreV1().Events(m.namespace).Watch(ctx, metav1.ListOptions{
			FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(uid)).String(),
		})
		if err == nil {
			if m.hear(events, talk, wake) {
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

// hear takes in Events until the watch ends, and tells whether there was any.
func (m *MoverEvents) hear(events watch.Interface, talk *conversation, wake func()) bool {
	defer events.Stop()
	heard := false
	for change := range events.ResultChan() {
		event, ok := change.Object.(*corev1.Event)
		if !ok || change.Type == watch.Deleted || !strings.HasPrefix(event.Reason, moverReasons) {
			continue
		}
		heard = true
		if m.take(talk, event) {
			wake()
		}
	}
	return heard
}

// take keeps what is new. A mover that says the same again after ten minutes makes a second Event
// for it, and a watch may begin with both in any order.
func (m *MoverEvents) take(talk *conversation, event *corev1.Event) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	if before, ok := talk.last[event.Reason]; ok && event.LastTimestamp.Time.Before(before.at) {
		return false
	}
	talk.last[event.Reason] = said{message: event.Message, at: event.LastTimestamp.Time}
	return true
}
