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

// deletions records what this agent deleted while the cache does not show it. The API server answers a request before
// its event arrives; a reconcile in between would delete twice.
type deletions[S any, T deletable[S]] struct {
	cached *Informer[T]

	lock sync.Mutex
	uids map[types.UID]bool
}

func newDeletions[S any, T deletable[S]](cached *Informer[T]) *deletions[S, T] {
	return &deletions[S, T]{cached: cached, uids: map[types.UID]bool{}}
}

// get returns the cached object, or nil. It sets the deletion timestamp if this agent deleted the object.
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
	ending.SetDeletionTimestamp(&metav1.Time{}) // the time does not matter
	return ending
}

// note records a deletion that the API server has accepted.
func (d *deletions[S, T]) note(key string, uid types.UID) {
	d.lock.Lock()
	d.uids[uid] = true
	d.lock.Unlock()
	d.drop(key, uid)
}

// drop forgets a deletion once the cache shows it.
func (d *deletions[S, T]) drop(key string, uid types.UID) {
	current, there := d.cached.Get(key)
	if there && current.GetUID() == uid && current.GetDeletionTimestamp() == nil {
		return
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	delete(d.uids, uid)
}
