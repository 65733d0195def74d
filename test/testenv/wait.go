package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// maxSeenBytes bounds the bytes of the last observed object in an error.
const maxSeenBytes = 4000

// Patience bounds the waits of tests. It only guards against hanging. Tests measure durations, and end at once on a
// wrong terminal state.
const Patience = 10 * time.Minute

// Watcher is a client that can watch.
type Watcher interface {
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Client is a client that can list and watch; L is the list type.
type Client[L runtime.Object] interface {
	Watcher
	List(ctx context.Context, options metav1.ListOptions) (L, error)
}

// Named selects the one object with that name in a list or watch.
func Named(name string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "metadata.name=" + name}
}

// Wait returns the first selected object that done accepts. The error contains the last observed object. A deleted
// object is an error, unless options select several. An object for which a function of terminal returns an error is
// one too, because it can never reach the wanted state.
func Wait[T runtime.Object](
	ctx context.Context, client Watcher, options metav1.ListOptions, done func(T) bool, terminal ...func(T) error,
) (T, error) {
	var none T
	what := fmt.Sprintf("%s %s%s", reflect.TypeFor[T]().Elem().Name(), options.FieldSelector, options.LabelSelector)
	watcher, err := client.Watch(ctx, options)
	if err != nil {
		return none, fmt.Errorf("watch %s: %w", what, err)
	}
	defer watcher.Stop()
	seen := "nothing was seen"
	for {
		select {
		case <-ctx.Done():
			return none, fmt.Errorf("wait for %s: %w; %s", what, context.Cause(ctx), seen)
		case event, open := <-watcher.ResultChan():
			if !open {
				return none, fmt.Errorf("wait for %s: the watch ended; %s", what, seen)
			}
			object, ok := event.Object.(T)
			if !ok {
				return none, fmt.Errorf("watch %s: %w", what, apierrors.FromObject(event.Object))
			}
			seen = "last seen: " + describe(object)
			if event.Type == watch.Deleted {
				if options.FieldSelector != "" {
					return none, fmt.Errorf("wait for %s: it was deleted; %s", what, seen)
				}
				continue
			}
			if done(object) {
				return object, nil
			}
			for _, why := range terminal {
				if err := why(object); err != nil {
					return none, fmt.Errorf("wait for %s: %w; %s", what, err, seen)
				}
			}
		}
	}
}

// describe returns the object as JSON, truncated to maxSeenBytes.
func describe(object runtime.Object) string {
	text, err := json.Marshal(object)
	if err != nil {
		return err.Error()
	}
	return string(text[:min(len(text), maxSeenBytes)])
}

// WaitGone waits until every selected object of now is deleted. Functions of belongs restrict the selection.
func WaitGone[L runtime.Object](
	ctx context.Context, client Client[L], options metav1.ListOptions, belongs ...func(runtime.Object) bool,
) error {
	list, err := client.List(ctx, options)
	if err != nil {
		return fmt.Errorf("list %T: %w", list, err)
	}
	left := map[string]bool{}
	err = apimeta.EachListItem(list, func(object runtime.Object) error {
		if slices.ContainsFunc(belongs, func(is func(runtime.Object) bool) bool { return !is(object) }) {
			return nil
		}
		name, err := apimeta.NewAccessor().Name(object)
		left[name] = true
		return err
	})
	if err != nil || len(left) == 0 {
		return err
	}
	if options.ResourceVersion, err = apimeta.NewAccessor().ResourceVersion(list); err != nil {
		return err
	}
	watcher, err := client.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watch %T: %w", list, err)
	}
	defer watcher.Stop()
	seen := "nothing changed"
	for len(left) > 0 {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the end of %v (%T): %w; %s", slices.Sorted(maps.Keys(left)), list, context.Cause(ctx), seen)
		case event, open := <-watcher.ResultChan():
			if !open || event.Type == watch.Error {
				return fmt.Errorf("wait for the end of %v (%T): the watch ended: %v; %s", slices.Sorted(maps.Keys(left)), list, event.Object, seen)
			}
			if event.Type == watch.Deleted {
				name, _ := apimeta.NewAccessor().Name(event.Object) // it is one of the list
				delete(left, name)
			}
			seen = "last seen: " + describe(event.Object)
		}
	}
	return nil
}

// WaitPod returns the pod after done accepts it. A terminal pod that done rejects is an error at once.
func (e *Env) WaitPod(ctx context.Context, namespace, name string, done func(*corev1.Pod) bool) (*corev1.Pod, error) {
	return Wait(ctx, e.Kube.CoreV1().Pods(namespace), Named(name), done, podEnded)
}

// podEnded returns an error for a terminal pod.
func podEnded(pod *corev1.Pod) error {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return fmt.Errorf("it has ended as %s", pod.Status.Phase)
	}
	return nil
}

// WaitPodGone waits until the pod is deleted.
func (e *Env) WaitPodGone(ctx context.Context, namespace, name string) error {
	return WaitGone(ctx, e.Kube.CoreV1().Pods(namespace), Named(name))
}

// NodeAgentPod returns the DaemonSet's pod on node after done accepts it.
func (e *Env) NodeAgentPod(ctx context.Context, node string, done func(*corev1.Pod) bool) (*corev1.Pod, error) {
	agents := metav1.ListOptions{LabelSelector: "role=node-agent", FieldSelector: "spec.nodeName=" + node}
	return Wait(ctx, e.Kube.CoreV1().Pods(e.Namespace), agents, done)
}

// Ready reports whether the kubelet reports the pod as Ready.
func Ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// WaitsForRestore reports whether a restored pod waits for its volumes.
func WaitsForRestore(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.InitContainerStatuses, func(c corev1.ContainerStatus) bool {
		return c.Name == WaitContainer && c.State.Running != nil
	})
}

// Running reports whether the containers of the pod have started and not all of them have ended.
func Running(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }

// WaitEvent returns a Kubernetes Event of Velero's namespace after done accepts it.
func (e *Env) WaitEvent(ctx context.Context, done func(*corev1.Event) bool) (*corev1.Event, error) {
	return Wait(ctx, e.Kube.CoreV1().Events(e.Namespace), metav1.ListOptions{}, done)
}
