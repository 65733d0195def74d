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
	"k8s.io/client-go/tools/cache"

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
)

// watches are all followed sources.
type watches struct {
	*Clients     // a fake one cannot start a watch with the current objects
	first        []*watched
	dependencies map[diagnose.Dependency]*watched
	changed      chan struct{} // has a buffer of one
	running      sync.WaitGroup
}

// note records a change since the last drawing.
func (w *watches) note() {
	select {
	case w.changed <- struct{}{}:
	default: // a change is already recorded
	}
}

// drain clears the recorded change before a drawing.
func (w *watches) drain() {
	select {
	case <-w.changed:
	default:
	}
}

// watched is a followed source. Its informer stores the objects and retries by itself after any error. This type adds
// whether the API server rejects the requests.
type watched struct {
	source
	informer cache.SharedIndexInformer
	note     func()
	refused  chan struct{} // closed after the first failed request

	lock sync.Mutex
	err  error // of the last request; nil after a success
	once sync.Once
}

// start follows a source until the context ends.
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
				one.outcome(ctx, err) // otherwise a list follows, and its result counts
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
	if err == nil { // errors are displayed, so they need no log
		err = one.informer.SetWatchErrorHandlerWithContext(func(context.Context, *cache.Reflector, error) {})
	}
	if err != nil { // a new informer never rejects these calls
		one.outcome(ctx, err)
		return one
	}
	w.running.Go(func() { one.informer.RunWithContext(ctx) })
	return one
}

// trim drops managed fields, which are unused and often the larger part of an object. Those of a ConfigMap date its
// last change.
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
		return // the follower has stopped
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

// failure returns the current error of the source; nil if it can be read.
func (w *watched) failure() error {
	w.lock.Lock()
	defer w.lock.Unlock()
	return w.err
}

// wait returns after the first successful or failed read of the source. Without one until the context ends, it has failed.
func (w *watched) wait(ctx context.Context) {
	select {
	case <-ctx.Done():
		w.lock.Lock()
		w.err = ctx.Err()
		w.lock.Unlock()
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
