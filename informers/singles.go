package informers

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// singles watches single objects by name, each for a subject: the resource that waits for the object, or the object
// itself.
type singles[S comparable, T Object] struct {
	ctx  context.Context // ends all watches
	open func(namespace string, one Scope) (*Informer[T], error)

	lock     sync.Mutex
	followed map[S]*single[T]
	watches  sync.WaitGroup
}

type single[T Object] struct {
	stop    context.CancelFunc
	key     string
	objects *Informer[T]
	enqueue func()
}

func newSingles[S comparable, T Object](ctx context.Context, open func(namespace string, one Scope) (*Informer[T], error)) *singles[S, T] {
	return &singles[S, T]{ctx: ctx, open: open, followed: map[S]*single[T]{}}
}

// Watch opens the watch for a subject, once. It calls enqueue from another goroutine when it is known whether the object
// exists, and at each of its changes.
func (s *singles[S, T]) Watch(subject S, name types.NamespacedName, enqueue func()) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.followed[subject] != nil || s.ctx.Err() != nil {
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
	key := cache.NewObjectName(name.Namespace, name.Name).String()
	s.followed[subject] = &single[T]{stop: stop, key: key, objects: objects, enqueue: enqueue}
	s.watches.Go(func() { objects.run(ctx) })
	s.watches.Go(func() { // an object that does not exist sends no event
		select {
		case <-objects.synced().Done():
			enqueue()
		case <-ctx.Done():
		}
	})
}

// Forget closes the watch of a subject. enqueue may be called once more.
func (s *singles[S, T]) Forget(subject S) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if followed := s.followed[subject]; followed != nil {
		followed.stop()
		delete(s.followed, subject)
	}
}

// get returns the watched object, the zero value if it does not exist; known is false until the watch has synced.
func (s *singles[S, T]) get(subject S) (object T, known bool) {
	s.lock.Lock()
	followed := s.followed[subject]
	s.lock.Unlock()
	if followed == nil || !followed.objects.shared.HasSynced() {
		return object, false
	}
	object, _ = followed.objects.Get(followed.key)
	return object, true
}

// Wait returns when every watch is closed, after the context has ended.
func (s *singles[S, T]) Wait() { s.watches.Wait() }
