package sim

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/client-go/util/workqueue"
)

// queue is the queue of a controller. The scheduler chooses which key is next. A queue that is first in, first out
// depends on the order of goroutines: when several add a key at once, and when a worker is faster than one of them.
type queue struct {
	name    string
	gate    *gate
	lock    sync.Mutex
	changed *sync.Cond
	waiting map[string]bool
	granted []string
	idle    int // workers that wait for a key
	working map[string]bool
	closed  bool
}

// queue makes the queue of a controller.
func (p *process) queue(name string) workqueue.TypedInterface[string] {
	q := &queue{name: name, gate: p.gate, waiting: map[string]bool{}, working: map[string]bool{}}
	q.changed = sync.NewCond(&q.lock)
	p.lock.Lock()
	defer p.lock.Unlock()
	p.queues[name] = q // a later term of a coordinator makes another one
	return q
}

// ready returns the keys that a worker can have now, in order. A key that is granted before there is a worker would be
// worked on together with others, once there are workers.
func (q *queue) ready() (keys []string) {
	q.lock.Lock()
	defer q.lock.Unlock()
	if q.idle <= len(q.granted) {
		return nil
	}
	for key := range maps.Keys(q.waiting) {
		if !q.working[key] && !slices.Contains(q.granted, key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// grant gives a key to the next worker.
func (q *queue) grant(key string) {
	q.lock.Lock()
	defer q.lock.Unlock()
	delete(q.waiting, key)
	q.granted = append(q.granted, key)
	q.changed.Broadcast()
}

// Add implements workqueue.TypedInterface, as the methods below.
func (q *queue) Add(key string) {
	q.lock.Lock()
	defer q.lock.Unlock()
	if !q.closed && !slices.Contains(q.granted, key) {
		q.waiting[key] = true
		q.gate.signal()
	}
}

// Len returns how many keys wait.
func (q *queue) Len() int {
	q.lock.Lock()
	defer q.lock.Unlock()
	return len(q.waiting)
}

// Get waits for a key.
func (q *queue) Get() (key string, shutdown bool) {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.idle++
	q.gate.signal()
	for len(q.granted) == 0 && !q.closed {
		q.changed.Wait()
	}
	q.idle--
	if len(q.granted) == 0 {
		return "", true
	}
	key, q.granted = q.granted[0], q.granted[1:]
	q.working[key] = true
	return key, false
}

// Done ends the work on a key.
func (q *queue) Done(key string) {
	q.lock.Lock()
	defer q.lock.Unlock()
	delete(q.working, key)
	q.gate.signal()
}

// ShutDown lets Get return.
func (q *queue) ShutDown() {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.closed = true
	q.changed.Broadcast()
}

// ShutDownWithDrain is ShutDown: nothing here uses it.
func (q *queue) ShutDownWithDrain() { q.ShutDown() }

// ShuttingDown reports whether the queue was shut down.
func (q *queue) ShuttingDown() bool {
	q.lock.Lock()
	defer q.lock.Unlock()
	return q.closed
}
