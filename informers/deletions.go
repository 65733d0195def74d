package informers

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// deletable is an object that can be copied.
type deletable[S any] interface {
	*S
	metav1.Object
	runtime.Object
	DeepCopy() *S
}

// deletions are what this agent has deleted, as long as the cache shows it as if it had not: a request is
// answered before its event arrives, and who looks in between would delete again.
type deletions[S any, T deletable[S]] struct {
	cached *Informer[T]

	lock sync.Mutex
	uids map[types.UID]bool
}

func newDeletions[S any, T deletable[S]](cached *Informer[T]) *deletions[S, T] {
	return &deletions[S, T]{cached: cached, uids: map[types.UID]bool{}}
}

// get is the cached object, being deleted if this agent has deleted it; nil if there is none.
func (d *deletions[S, T]) get(key string) T {
	object, there := d.cached.Get(key)
	if !there {
		return nil
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	if !d.uids[object.GetUID()] {
		return object
	}
	var ending T = object.DeepCopy()
	ending.SetDeletionTimestamp(&metav1.Time{}) // when does not matter
	return ending
}

// note takes in a deletion that the API server has answered.
func (d *deletions[S, T]) note(key string, uid types.UID) {
	d.lock.Lock()
	d.uids[uid] = true
	d.lock.Unlock()
	d.drop(key, uid)
}

// drop forgets a deletion, if it is one, of which the cache has heard.
func (d *deletions[S, T]) drop(key string, uid types.UID) {
	current, there := d.cached.Get(key)
	if there && current.GetUID() == uid && current.GetDeletionTimestamp() == nil {
		return
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	delete(d.uids, uid)
}
