package floor

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// follow starts the watch of a namespace, and returns once it has listed. It calls seen for each new object and each change.
func follow[T, L runtime.Object](ctx context.Context, client interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}, example T, selector string, seen func(object T, isNew bool)) error {
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
	call := func(object any, isNew bool) {
		if typed, ok := object.(T); ok {
			seen(typed, isNew)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { call(object, true) }, UpdateFunc: func(_, object any) { call(object, false) },
	})
	if err != nil {
		return fmt.Errorf("watch %T: %w", example, err)
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return errors.New("caches have not synced")
	}
	return nil
}

// mover is what the watch has seen of a mover pod. A pod changes less often than its capacity.
type mover chan *corev1.Pod

const capacity = 100

// until returns the pod once it is in a phase.
func (m mover) until(ctx context.Context, phase corev1.PodPhase) (*corev1.Pod, error) {
	for {
		select {
		case pod := <-m:
			if pod.Status.Phase == phase {
				return pod, nil
			}
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for a mover that is %s: %w", phase, context.Cause(ctx))
		}
	}
}
