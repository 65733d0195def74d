// Package writes creates the merge patches of reconcilers and keeps a write until the cache has it. It never decides
// what to write.
package writes

import (
	"encoding/json"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"

	"github.com/lateen-project/lateen/exposer/api"
)

// Overlay holds the last version of each object: the cached one, or this process's own later write. The API server
// answers a write before its watch event arrives. The zero value is ready for use.
type Overlay[T metav1.Object] struct {
	lock  sync.Mutex
	known map[string]version[T] // by key
}

type version[T metav1.Object] struct {
	object T
	ahead  bool // newer than the cache
}

// isLater reports whether it is an own write of the cached object, which the cache lacks.
func (v version[T]) isLater(cached T) bool {
	return v.ahead && v.object.GetUID() == cached.GetUID() && api.IsNewer(v.object.GetResourceVersion(), cached.GetResourceVersion())
}

// Record keeps a write, so that no decision uses the version before it.
func (o *Overlay[T]) Record(key string, written T) {
	o.lock.Lock()
	defer o.lock.Unlock()
	o.set(key, version[T]{written, true})
}

func (o *Overlay[T]) set(key string, known version[T]) {
	if o.known == nil {
		o.known = map[string]version[T]{}
	}
	o.known[key] = known
}

// Newest returns the cached object, or the own write of the same object while the cache is older. Once the cache has
// caught up, only the cache counts. So the overlay follows a control plane that was restored from a backup.
func (o *Overlay[T]) Newest(key string, cached T) T {
	o.lock.Lock()
	defer o.lock.Unlock()
	if known := o.known[key]; known.isLater(cached) {
		return known.object
	}
	o.set(key, version[T]{cached, false})
	return cached
}

// All returns the newest version of each cached object, and the own writes that the cache has not shown yet. It
// forgets all other objects. The event handler forgets a write whose object was deleted.
func (o *Overlay[T]) All(cached []T, keyOf func(T) string) []T {
	all, found := make([]T, 0, len(cached)), make(map[string]bool, len(cached))
	for _, object := range cached {
		found[keyOf(object)] = true
		all = append(all, o.Newest(keyOf(object), object))
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	for key, known := range o.known {
		switch {
		case found[key]:
		case known.ahead:
			all = append(all, known.object)
		default:
			delete(o.known, key)
		}
	}
	return all
}

// IsStale reports whether this process has written a later version of a cached object. Unlike Newest, it keeps what is
// known.
func (o *Overlay[T]) IsStale(key string, cached T) bool {
	o.lock.Lock()
	defer o.lock.Unlock()
	return o.known[key].isLater(cached)
}

// IsRecreated reports whether the last version of the key has another UID.
func (o *Overlay[T]) IsRecreated(key string, uid types.UID) bool {
	o.lock.Lock()
	defer o.lock.Unlock()
	known, ok := o.known[key]
	return ok && known.object.GetUID() != uid
}

// Forget drops a key and returns its last version, if there is one.
func (o *Overlay[T]) Forget(key string) (last T, ok bool) {
	o.lock.Lock()
	defer o.lock.Unlock()
	known, ok := o.known[key]
	delete(o.known, key)
	return known.object, ok
}

// FieldManager is the field manager of Lateen's writes.
const FieldManager = "lateen"

// MergePatch returns a JSON merge patch from before to after. It contains the resourceVersion of before, so the API
// server refuses it after another write. It keeps fields that our types do not know.
func MergePatch(before, after metav1.Object) ([]byte, error) {
	original, err := json.Marshal(before)
	if err != nil {
		return nil, fmt.Errorf("encode original: %w", err)
	}
	changed, err := json.Marshal(after)
	if err != nil {
		return nil, fmt.Errorf("encode changed: %w", err)
	}
	patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(original, changed, original)
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	fields := map[string]json.RawMessage{}
	metadata := map[string]json.RawMessage{}
	if err := json.Unmarshal(patch, &fields); err != nil {
		return nil, fmt.Errorf("decode patch: %w", err)
	}
	if found, ok := fields["metadata"]; ok {
		if err := json.Unmarshal(found, &metadata); err != nil {
			return nil, fmt.Errorf("decode patch of metadata: %w", err)
		}
	}
	if metadata["resourceVersion"], err = json.Marshal(before.GetResourceVersion()); err != nil {
		return nil, fmt.Errorf("encode resourceVersion: %w", err)
	}
	if fields["metadata"], err = json.Marshal(metadata); err != nil {
		return nil, fmt.Errorf("encode metadata: %w", err)
	}
	return json.Marshal(fields)
}
