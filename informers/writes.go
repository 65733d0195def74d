package informers

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
)

// ownWrites holds what this process wrote while the cache lacks it. The API server answers a write before its event
// arrives; a reconcile in between would decide from the version before the write. So each read of an Informer returns
// the newest of what the cache has and what this process wrote. A deletion that this process sent counts until the cache
// has it, or has another UID.
//
// A write is dropped once the cache has the same or a later version. If the cache does not have the object, the version of
// the whole cache counts: one that has reached the write has had the object, and perhaps its deletion. (The version of the
// watch is ahead of the cache while events are queued.) Each read drops the old writes of the objects that it reads, each
// record drops all old ones.
type ownWrites[T Object] struct {
	lock    sync.Mutex
	written map[string]T         // by key
	deleted map[string]types.UID // by key
}

// Record records an object as the API server returned it to a write of this process.
func (i *Informer[T]) Record(written T) {
	i.lock.Lock()
	defer i.lock.Unlock()
	if i.written == nil {
		i.written = map[string]T{}
	}
	i.written[Key(written)] = written
	i.dropOld()
}

// RecordDeletion records that the API server accepted a deletion by this process. From now on the cached object has a
// deletion timestamp; one that only this process has written is absent.
func (i *Informer[T]) RecordDeletion(key string, uid types.UID) {
	i.lock.Lock()
	defer i.lock.Unlock()
	if i.deleted == nil {
		i.deleted = map[string]types.UID{}
	}
	i.deleted[key] = uid
	if _, exists := i.cached(key); !exists {
		delete(i.written, key)
	}
	i.dropOld()
}

// recorded reports whether only this process has an object. If the cache never gets it, no event reports that it is gone.
func (i *Informer[T]) recorded(key string) bool {
	i.lock.Lock()
	defer i.lock.Unlock()
	i.newest(key)
	_, written := i.written[key]
	_, exists := i.cached(key)
	return written && !exists
}

// drop drops the write of an object of which another cache has the same or a later version.
func (i *Informer[T]) drop(observed T) {
	i.lock.Lock()
	defer i.lock.Unlock()
	written, ok := i.written[Key(observed)]
	if ok && written.GetUID() == observed.GetUID() && !api.IsNewer(written.GetResourceVersion(), observed.GetResourceVersion()) {
		delete(i.written, Key(observed))
	}
}

// dropOld drops all writes that the cache has.
func (i *Informer[T]) dropOld() {
	for key := range i.written {
		i.newest(key)
	}
	for key := range i.deleted {
		i.newest(key)
	}
}

// newest returns the newest version of an object, or false. It drops the writes of the object that the cache has.
func (i *Informer[T]) newest(key string) (T, bool) {
	object, exists := i.cached(key)
	if written, ok := i.written[key]; ok {
		version := i.shared.GetStore().LastStoreSyncResourceVersion()
		if exists {
			version = object.GetResourceVersion()
		}
		if api.IsNewer(written.GetResourceVersion(), version) {
			object, exists = written, true
		} else {
			delete(i.written, key)
		}
	}
	uid, ok := i.deleted[key]
	if !ok {
		return object, exists
	}
	if exists && object.GetUID() == uid && object.GetDeletionTimestamp() == nil {
		deleting, ok := object.DeepCopyObject().(T)
		deleting.SetDeletionTimestamp(&metav1.Time{}) // the time does not matter
		return deleting, ok
	}
	delete(i.deleted, key)
	return object, exists
}
