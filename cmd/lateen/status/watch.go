package status

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// watches are all sources that are followed.
type watches struct {
	kube         kubernetes.Interface // of the cluster: a fake one cannot begin a watch with what there is
	first        []*watched
	dependencies map[dependency]*watched
	changed      chan struct{} // has room for one word
	running      sync.WaitGroup
}

// note says that something has changed since the last drawing.
func (w *watches) note() {
	select {
	case w.changed <- struct{}{}:
	default: // that is known
	}
}

// drain forgets what has changed: it is drawn now.
func (w *watches) drain() {
	select {
	case <-w.changed:
	default:
	}
}

// watched is a source that is followed. An informer keeps what it has, and tries again by itself whatever happens;
// what is added here is to know when the API server refuses.
type watched struct {
	source
	informer cache.SharedIndexInformer
	note     func()
	refused  chan struct{} // closed when the first request has failed

	lock sync.Mutex
	err  error // of the last request; nil if it was answered
	once sync.Once
}

// start begins to follow a source, until the context ends.
func (w *watches) start(ctx context.Context, of source) *watched {
	one := &watched{source: of, note: w.note, refused: make(chan struct{})}
	lists := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			found, err := of.lists.ListWithContext(ctx, opts)
			one.outcome(ctx, err)
			return found, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			begun, err := of.lists.WatchWithContext(ctx, opts)
			if asksForAll := opts.SendInitialEvents != nil; err == nil || !asksForAll || apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
				one.outcome(ctx, err) // else a list follows, and what comes of that counts
			}
			return begun, err
		},
	}
	one.informer = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lists, w.kube), of.example, 0, cache.Indexers{})
	changed := func(any) { w.note() }
	_, err := one.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, DeleteFunc: changed, UpdateFunc: func(_, after any) { changed(after) },
	})
	if err == nil {
		err = one.informer.SetTransform(trim)
	}
	if err == nil { // what goes wrong is shown, and need not be logged
		err = one.informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {})
	}
	if err != nil { // an informer that was just made refuses none of these
		one.outcome(ctx, err)
		return one
	}
	w.running.Go(func() { one.informer.RunWithContext(ctx) })
	return one
}

// trim leaves out what nobody reads and what is often the larger part. When a ConfigMap was changed is read there.
func trim(object any) (any, error) {
	if _, is := object.(*corev1.ConfigMap); is {
		return object, nil
	}
	if known, err := meta.Accessor(object); err == nil {
		known.SetManagedFields(nil)
	}
	return object, nil
}

func (w *watched) outcome(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return // nobody looks any more
	}
	w.lock.Lock()
	changed := (err == nil) != (w.err == nil)
	w.err = err
	w.lock.Unlock()
	if err != nil {
		w.once.Do(func() { close(w.refused) })
	}
	if changed {
		w.note()
	}
}

// failure is why the source cannot be read now; nil if it can.
func (w *watched) failure() error {
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.err
}

// wait returns when the source was read for the first time, or could not be.
func (w *watched) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-w.refused:
	case <-w.informer.HasSyncedChecker().Done():
	}
}

func (w *watched) objects() []runtime.Object {
	var objects []runtime.Object
	for _, one := range w.informer.GetStore().List() {
		if known, ok := one.(runtime.Object); ok {
			objects = append(objects, known)
		}
	}
	return objects
}
