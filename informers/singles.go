package informers

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// singles watches single objects, each by its name for a resource that waits for it.
type singles[T Object] struct {
	ctx  context.Context // ends all watches
	open func(namespace string, one Scope) (*Informer[T], error)

	lock     sync.Mutex
	followed map[types.UID]*single[T] // by the resource that waits
	watches  sync.WaitGroup
}

type single[T Object] struct {
	stop    context.CancelFunc
	key     string
	objects *Informer[T]
	enqueue func()
}

func newSingles[T Object](ctx context.Context, open func(namespace string, one Scope) (*Informer[T], error)) *singles[T] {
	return &singles[T]{ctx: ctx, open: open, followed: map[types.UID]*single[T]{}}
}

// Watch opens the watch for a resource, once. Enqueue is called when it is known whether the object exists, and at each of
// its changes.
func (s *singles[T]) Watch(uid types.UID, name types.NamespacedName, enqueue func()) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.followed[uid] != nil || s.ctx.Err() != nil {
		return
	}
	objects, err := s.open(name.Namespace, Scope{Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, name.Name).String()})
	if err == nil {
		_, err = objects.AddHandler(func(T) { enqueue() })
	}
	if err != nil {
		klog.FromContext(s.ctx).Error(err, "Failed to watch object", "object", name)
		return
	}
	ctx, stop := context.WithCancel(s.ctx)
	s.followed[uid] = &single[T]{stop: stop, key: name.String(), objects: objects, enqueue: enqueue}
	s.watches.Go(func() { objects.run(ctx) })
	s.watches.Go(func() { // an object that does not exist makes no event
		select {
		case <-objects.synced().Done():
			enqueue()
		case <-ctx.Done():
		}
	})
}

// Forget closes the watch of a resource.
func (s *singles[T]) Forget(uid types.UID) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if followed := s.followed[uid]; followed != nil {
		followed.stop()
		delete(s.followed, uid)
	}
}

// get is the object that a resource waits for, the zero value if it does not exist; known is false until the watch has
// shown which.
func (s *singles[T]) get(uid types.UID) (object T, known bool) {
	s.lock.Lock()
	followed := s.followed[uid]
	s.lock.Unlock()
	if followed == nil || !followed.objects.shared.HasSynced() {
		return object, false
	}
	object, _ = followed.objects.Get(followed.key)
	return object, true
}

// Wait returns when every watch is closed, after the context has ended.
func (s *singles[T]) Wait() { s.watches.Wait() }
