package cli

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/klog/v2"
)

// Follow calls see for the existing objects and for every change, until done returns true or ctx ends. It asks done for the
// first time when it has seen all existing objects. After that, it may see earlier states of them once more. It resumes a watch
// that the API server closes, and retries while the server does not answer. Its error then includes the last failure. A
// rejected request ends it at once.
func Follow(
	ctx context.Context, resource dynamic.ResourceInterface, options metav1.ListOptions,
	see func(watch.EventType, *unstructured.Unstructured), done func() bool,
) error {
	// the error contains everything that client-go would log
	ctx, stop := context.WithCancelCause(klog.NewContext(ctx, logr.Discard()))
	defer stop(nil)
	requests := requests{resource: resource, options: options, stop: stop}
	requests.last.Store(new(error))
	_, err := watchtools.UntilWithSync(ctx, requests.source(), &unstructured.Unstructured{},
		func(store cache.Store) (bool, error) {
			for _, existing := range store.List() {
				if object, ok := existing.(*unstructured.Unstructured); ok {
					see(watch.Added, object)
				}
			}
			return done(), nil
		},
		func(event watch.Event) (bool, error) {
			if object, ok := event.Object.(*unstructured.Unstructured); ok {
				see(event.Type, object)
			}
			return done(), nil
		})
	cause := context.Cause(ctx)
	switch last := *requests.last.Load(); {
	case err == nil:
		return nil
	case cause == nil:
		return err
	case last != nil && ctx.Err() != nil && last != cause: //nolint:errorlint // do not repeat the same error
		return fmt.Errorf("%w (%w)", cause, last)
	}
	return cause
}

// requests sends the requests of one watch and keeps the error of the last one.
type requests struct {
	resource dynamic.ResourceInterface
	options  metav1.ListOptions // selects the objects
	stop     func(error)

	last atomic.Pointer[error]
}

// listFirst keeps client-go from listing through a watch. Few objects are followed, and the error of a LIST shows the
// cause.
type listFirst struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported implements the check of client-go for this.
func (listFirst) IsWatchListSemanticsUnSupported() bool { return true }

func (r *requests) source() listFirst {
	narrowed := func(options metav1.ListOptions) metav1.ListOptions {
		options.FieldSelector, options.LabelSelector = r.options.FieldSelector, r.options.LabelSelector
		return options
	}
	return listFirst{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.ResourceVersion = "" // "0" may return the state before a write of this command
			list, err := r.resource.List(ctx, narrowed(options))
			return list, r.ended(err)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			changes, err := r.resource.Watch(ctx, narrowed(options))
			return changes, r.ended(err)
		},
	}}
}

// ended records the error of a request. It stops the watch if a retry would fail too.
func (r *requests) ended(err error) error {
	r.last.Store(&err)
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
		r.stop(err)
	}
	return err
}
