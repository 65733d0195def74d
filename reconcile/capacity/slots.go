package capacity

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Slots are the places for movers on one node, over all kinds. The oldest resource in line is next.
// A slot is taken in memory before the write that uses it, so two workers cannot take the last one.
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

// NewSlots is for a node on which limit movers may run at once.
func NewSlots(limit int) *Slots {
	return &Slots{limit: limit, held: map[types.UID]struct{}{}}
}

// Limit is how many movers may run at once.
func (s *Slots) Limit() int { return s.limit }

// InUse is how many slots are held. After a restart it may exceed the limit.
func (s *Slots) InUse() int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return len(s.held)
}

// ForceAcquire gives a slot to a resource whose mover works already, limit or not.
func (s *Slots) ForceAcquire(uid types.UID) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.leave(func(w *waiter) bool { return w.uid == uid })
	s.held[uid] = struct{}{}
}

// Queue puts a resource in line, if it is not, and tells whether a slot is free for it now. When one
// becomes free for it, wake is called.
func (s *Slots) Queue(uid types.UID, created time.Time, enqueue func()) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.mayStart(uid, created, enqueue)
}

// TryAcquire is Queue, and takes the slot that is free.
func (s *Slots) TryAcquire(uid types.UID, created time.Time, enqueue func()) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	if !s.mayStart(uid, created, enqueue) {
		return false
	}
	s.leave(func(w *waiter) bool { return w.uid == uid })
	s.held[uid] = struct{}{}
	return true
}

// Release frees the slot of a resource, or its place in the line, and wakes who is next.
func (s *Slots) Release(uid types.UID) {
	s.lock.Lock()
	_, held := s.held[uid]
	delete(s.held, uid)
	var next []func()
	if s.leave(func(w *waiter) bool { return w.uid == uid }) || held {
		for _, w := range s.line[:min(s.free(), len(s.line))] {
			next = append(next, w.enqueue)
		}
	}
	s.lock.Unlock()
	for _, enqueue := range next {
		enqueue()
	}
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

// enter puts a waiter where its age belongs and tells how many are before it.
func (s *Slots) enter(w *waiter) int {
	place, _ := slices.BinarySearchFunc(s.line, w, func(a, b *waiter) int {
		return cmp.Or(a.createdAt.Compare(b.createdAt), cmp.Compare(a.uid, b.uid))
	})
	s.line = slices.Insert(s.line, place, w)
	return place
}

func (s *Slots) leave(match func(*waiter) bool) bool {
	before := len(s.line)
	s.line = slices.DeleteFunc(s.line, match)
	return len(s.line) < before
}
