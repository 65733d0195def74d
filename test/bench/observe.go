package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/lateen-project/lateen/test/testenv"
)

// follow calls enough for each change of the objects of a label selector, in the background, until enough is true. What
// enough has written may be read after the channel has an answer.
func follow[L runtime.Object](
	ctx context.Context, client testenv.Client[L], selector string, enough func(watch.Event) bool,
) (<-chan error, error) {
	now, err := client.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list %T: %w", now, err)
	}
	version, err := meta.NewAccessor().ResourceVersion(now)
	if err != nil {
		return nil, fmt.Errorf("list %T: %w", now, err)
	}
	selected := &cache.ListWatch{WatchFuncWithContext: func(ctx context.Context, from metav1.ListOptions) (watch.Interface, error) {
		from.LabelSelector = selector
		return client.Watch(ctx, from)
	}}
	// The API server cuts watches that do not keep up with a burst. This one resumes.
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, version, selected)
	if err != nil {
		return nil, fmt.Errorf("watch %T: %w", now, err)
	}
	ended := make(chan error, 1)
	go func() {
		defer watcher.Stop()
		for event := range watcher.ResultChan() {
			if event.Type == watch.Error {
				ended <- apierrors.FromObject(event.Object)
				return
			}
			if enough(event) {
				ended <- nil
				return
			}
		}
		ended <- fmt.Errorf("watch %T: %w", now, context.Cause(ctx))
	}()
	return ended, nil
}

// phases adds, in the background, every change of phase, once all transfers are terminal and the agents have removed their
// finalizers, which is the last thing that they do.
func (s *installation) phases(ctx context.Context, result *seen) (<-chan error, error) {
	history, err := s.Record(ctx)
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() {
		terminal, counted := map[string]bool{}, 0
		all, err := history.Until(ctx, func(all []testenv.Transition) bool {
			for _, seen := range all[counted:] {
				if seen.To.Ended() {
					terminal[seen.Name] = true
				}
			}
			counted = len(all)
			return len(terminal) == result.transfers
		})
		result.transitions = all
		for name := range terminal {
			_, settled := s.Transfers(result.kind).Wait(ctx, name, testenv.Settled)
			err = errors.Join(err, settled)
		}
		ended <- err
	}()
	return ended, nil
}

// pods adds, in the background, when the pods of a selector were created (InProgress) and ended (Completed), until so many
// have ended.
func (s *installation) pods(ctx context.Context, selector string, many int, into *[]testenv.Transition) (<-chan error, error) {
	created, ended := map[string]bool{}, map[string]bool{}
	note := func(pod *corev1.Pod, phase testenv.Phase, noted map[string]bool) {
		if !noted[pod.Name] {
			noted[pod.Name] = true
			*into = append(*into, testenv.Transition{Name: pod.Name, To: phase, At: time.Now()})
		}
	}
	return follow(ctx, s.Kube.CoreV1().Pods(s.Namespace), selector, func(event watch.Event) bool {
		if pod, ok := event.Object.(*corev1.Pod); ok {
			note(pod, testenv.InProgress, created)
			if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
				note(pod, testenv.Completed, ended)
			}
		}
		return len(ended) == many
	})
}
