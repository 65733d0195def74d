package capacity

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Slots are the slots for movers on one node, over all kinds, or the places of a Preparation. The oldest queued resource
// is next. A slot is taken in memory before the write that uses it, so two workers cannot take the last one.
type Slots struct {
	limit int

	lock sync.Mutex
	held map[types.UID]struct{}
	line []*waiter // oldest first
}

type waiter struct {
	uid       types.UID
	createdAt time.Time
	enqueue   func()
}

// NewSlots returns the slots of a node on which limit movers may run at once.
func NewSlots(limit int) *Slots {
	return &Slots{limit: limit, held: map[types.UID]struct{}{}}
}

// Limit returns how many movers may run at once.
func (s *Slots) Limit() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.limit
}

// SetLimit changes how many may run at once, and enqueues those that may start now.
func (s *Slots) SetLimit(limit int) {
	s.lock.Lock()
	s.limit = limit
	next := s.next()
	s.lock.Unlock()
	for _, enqueue := range next {
		enqueue()
	}
}

// InUse returns how many slots are held. After a restart it may exceed the limit.
func (s *Slots) InUse() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.held)
}

// ForceAcquire gives a slot to a resource whose mover already runs, even above the limit.
func (s *Slots) ForceAcquire(uid types.UID) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.leave(uid)
	s.held[uid] = struct{}{}
}

// Queue queues a resource, if it is not queued yet, and reports whether a slot is free for it now. It calls enqueue
// when one becomes free.
func (s *Slots) Queue(uid types.UID, created time.Time, enqueue func()) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.mayStart(uid, created, enqueue)
}

// TryAcquire does what Queue does, and takes a free slot.
func (s *Slots) TryAcquire(uid types.UID, created time.Time, enqueue func()) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	if !s.mayStart(uid, created, enqueue) {
		return false
	}
	s.leave(uid)
	s.held[uid] = struct{}{}
	return true
}

// Release frees the slot of a resource, or its queue position, and enqueues the next ones.
func (s *Slots) Release(uid types.UID) {
	s.lock.Lock()
	_, held := s.held[uid]
	delete(s.held, uid)
	var next []func()
	if s.leave(uid) || held {
		next = s.next()
	}
	s.lock.Unlock()
	for _, enqueue := range next {
		enqueue()
	}
}

// next returns the enqueue functions of those for which a slot is free.
func (s *Slots) next() (enqueues []func()) {
	for _, w := range s.line[:min(s.free(), len(s.line))] {
		enqueues = append(enqueues, w.enqueue)
	}
	return enqueues
}

func (s *Slots) free() int { return max(s.limit-len(s.held), 0) }

func (s *Slots) mayStart(uid types.UID, created time.Time, enqueue func()) bool {
	if _, has := s.held[uid]; has {
		return true
	}
	place := slices.IndexFunc(s.line, func(w *waiter) bool { return w.uid == uid })
	if place < 0 {
		place = s.enter(&waiter{uid: uid, createdAt: created, enqueue: enqueue})
	}
	return place < s.free()
}

// enter inserts a waiter by its age and returns how many are before it.
func (s *Slots) enter(w *waiter) int {
	place, _ := slices.BinarySearchFunc(s.line, w, func(a, b *waiter) int {
		return cmp.Or(a.createdAt.Compare(b.createdAt), cmp.Compare(a.uid, b.uid))
	})
	s.line = slices.Insert(s.line, place, w)
	return place
}

// leave removes a waiter and reports whether there was one.
func (s *Slots) leave(uid types.UID) bool {
	before := len(s.line)
	s.line = slices.DeleteFunc(s.line, func(w *waiter) bool { return w.uid == uid })
	return len(s.line) < before
}
