package status

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/status/diagnose"
	"github.com/lateen-project/lateen/cmd/lateen/status/view"
)

// watchOptions configure Follow and Read.
type watchOptions struct {
	Namespace   string   // of Velero
	Sources     []source // without dependencies
	Clock       clock.Clock
	MinInterval time.Duration // minimum time between two drawings
	MaxInterval time.Duration // maximum time between two drawings: the ages on screen grow without a change
	SyncTimeout time.Duration // limit for the first read of all resources
}

// Read reads a cluster once, with the additional objects about one reference if it is not empty. It omits a resource
// that cannot be read in time. The error means that no resource could be read, or that the context ended.
func (c *clients) Read(ctx context.Context, how watchOptions, of diagnose.Reference) (snapshot *diagnose.Snapshot, err error) {
	err = c.watch(ctx, how, func(ctx context.Context, all *watches) error {
		snapshot = all.snapshot(ctx, how, of)
		return ctx.Err()
	})
	return snapshot, err
}

// Follow draws a cluster until the context ends, which is no error. It draws after the first read of all resources,
// and then after each change. It lists each resource once and then watches it. The error means that the first read
// failed for all resources or timed out, or it comes from draw.
func (c *clients) Follow(ctx context.Context, how watchOptions, draw func(*diagnose.Snapshot) error) error {
	return c.watch(ctx, how, func(ctx context.Context, all *watches) error {
		for ctx.Err() == nil {
			all.drain()
			if snapshot := all.snapshot(ctx, how, diagnose.Reference{}); ctx.Err() == nil {
				if err := draw(snapshot); err != nil {
					return fmt.Errorf("print status: %w", err)
				}
				all.pause(ctx, how)
			}
		}
		return nil
	})
}

// watch calls use while it watches the sources, after each of them was read or failed.
func (c *clients) watch(ctx context.Context, how watchOptions, use func(context.Context, *watches) error) error {
	ctx, stop := context.WithCancel(ctx)
	all := &watches{clients: c, changed: make(chan struct{}, 1), dependencies: map[diagnose.Dependency]*watched{}}
	defer all.running.Wait()
	defer stop()
	for _, one := range how.Sources {
		all.first = append(all.first, all.start(ctx, one))
	}
	if err := all.answered(ctx, how); err != nil {
		return err
	}
	return use(ctx, all)
}

// answered waits until each of the first sources was read or failed, or did not answer in time. The error means that none
// was read.
func (w *watches) answered(ctx context.Context, how watchOptions) error {
	bounded, cancel := context.WithTimeout(ctx, how.SyncTimeout)
	defer cancel()
	for _, one := range w.first {
		one.wait(bounded)
	}
	readable := func(one *watched) bool { return one.failure() == nil }
	if ctx.Err() != nil || slices.ContainsFunc(w.first, readable) {
		return nil
	}
	if err := w.first[0].failure(); !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("list %s: %w", w.first[0].resource, err)
	}
	return fmt.Errorf("read cluster: no response from the API server within %s; check that it is running and reachable", how.SyncTimeout)
}

// snapshot returns the current objects of the sources and of what their transfers, or a reference, depend on.
func (w *watches) snapshot(ctx context.Context, how watchOptions, of diagnose.Reference) *diagnose.Snapshot {
	first := w.gather(how, w.first)
	dependencies := first.Dependencies()
	if of != (diagnose.Reference{}) {
		dependencies = append(dependencies, first.About(of)...)
	}
	wanted := slices.Clone(w.first)
	for _, dependency := range dependencies {
		if w.dependencies[dependency] == nil {
			w.dependencies[dependency] = w.start(ctx, w.dependency(dependency))
		}
		wanted = append(wanted, w.dependencies[dependency])
	}
	bounded, cancel := context.WithTimeout(ctx, how.SyncTimeout)
	defer cancel()
	for _, one := range wanted {
		one.wait(bounded)
	}
	return w.gather(how, wanted)
}

func (w *watches) gather(how watchOptions, of []*watched) *diagnose.Snapshot {
	var objects []runtime.Object
	var unreadable []view.Unreadable
	for _, one := range of {
		objects = append(objects, one.objects()...)
		if err := one.failure(); err != nil {
			unreadable = append(unreadable, one.unreadable(err))
		}
	}
	return diagnose.Gather(how.Namespace, how.Clock.Now(), objects, unreadable)
}

// pause waits until the next drawing is due.
func (w *watches) pause(ctx context.Context, how watchOptions) {
	idle := how.Clock.NewTimer(how.MaxInterval)
	defer idle.Stop()
	pace := how.Clock.NewTimer(how.MinInterval)
	defer pace.Stop()
	select {
	case <-ctx.Done():
	case <-pace.C():
	}
	select {
	case <-ctx.Done():
	case <-w.changed:
	case <-idle.C():
	}
}

// watches are all followed sources.
type watches struct {
	*clients     // a fake one cannot start a watch with the current objects
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
	refused  chan struct{} // closed after the first request that failed or was not answered in time

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

// wait returns after the first successful or failed read of the source. Without an answer before the deadline of the
// context, the source has failed until it answers.
func (w *watched) wait(ctx context.Context) {
	select {
	case <-w.refused:
		return
	case <-w.informer.HasSyncedChecker().Done():
		return
	default:
	}
	select {
	case <-w.refused:
	case <-w.informer.HasSyncedChecker().Done():
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			w.outcome(context.WithoutCancel(ctx), ctx.Err())
		}
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
