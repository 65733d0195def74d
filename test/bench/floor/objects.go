package floor

import (
	"context"
	"errors"
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// objects is a cache of objects whose states can be awaited.
type objects[T metav1.Object] struct {
	store   cache.Store
	lock    sync.Mutex
	changed map[string]chan struct{} // by key, closed at the next change
}

// follow starts the watch of a namespace, and returns once it has listed. It calls added for each new object.
func follow[T interface {
	metav1.Object
	runtime.Object
}, L runtime.Object](ctx context.Context, client interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}, example T, selector string, added func(T)) (*objects[T], error) {
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = selector
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = selector
			return client.Watch(ctx, options)
		},
	}, example, 0, nil)
	o := &objects[T]{store: informer.GetStore(), changed: map[string]chan struct{}{}}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) {
			o.notify(object)
			if typed, ok := object.(T); ok && added != nil {
				added(typed)
			}
		},
		UpdateFunc: func(_, object any) { o.notify(object) },
	})
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", example, err)
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, errors.New("caches have not synced")
	}
	return o, nil
}

// notify releases those that wait for a change of an object.
func (o *objects[T]) notify(object any) {
	key, err := cache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return // no API object
	}
	o.lock.Lock()
	defer o.lock.Unlock()
	if changed := o.changed[key]; changed != nil {
		close(changed)
		delete(o.changed, key)
	}
}

// until returns an object once it is as wanted.
func (o *objects[T]) until(ctx context.Context, key string, wanted func(T) bool) (none T, err error) {
	for {
		o.lock.Lock()
		if o.changed[key] == nil {
			o.changed[key] = make(chan struct{})
		}
		changed := o.changed[key]
		o.lock.Unlock()
		object, exists, err := o.store.GetByKey(key)
		if err != nil {
			return none, fmt.Errorf("read cache: %w", err)
		}
		if typed, ok := object.(T); ok && exists && wanted(typed) {
			return typed, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return none, fmt.Errorf("wait for %s: %w", key, context.Cause(ctx))
		}
	}
}
