package testenv

import (
	"context"
	"fmt"
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// kindRecorder records the transitions of one kind.
type kindRecorder struct {
	recorder *Recorder
	kind     Kind
	client   dynamic.ResourceInterface
	known    map[string]*Transfer // the last observed state by name
}

// list records the current state and returns the version at which to start a watch.
func (s *kindRecorder) list(ctx context.Context) (version string, err error) {
	list, err := s.client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list %ss: %w", s.kind, err)
	}
	deleted := maps.Clone(s.known)
	for i := range list.Items {
		delete(deleted, list.Items[i].GetName())
		if err := s.observe(&list.Items[i]); err != nil {
			return "", err
		}
	}
	for _, last := range deleted {
		s.recordDeletion(last)
	}
	return list.GetResourceVersion(), nil
}

// follow watches until ctx is done. The watch resumes by itself after an interruption. If it cannot, follow lists
// again.
func (s *kindRecorder) follow(ctx context.Context, version string) {
	for {
		err := s.watch(ctx, version)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			version, err = s.list(ctx)
		}
		if err != nil {
			s.recorder.end(err)
			return
		}
	}
}

// watch returns nil after the API server no longer knows the version.
func (s *kindRecorder) watch(ctx context.Context, version string) error {
	source := &cache.ListWatch{WatchFuncWithContext: s.client.Watch}
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, version, source)
	if err != nil {
		return fmt.Errorf("watch %ss: %w", s.kind, err)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		resource, ok := event.Object.(*unstructured.Unstructured)
		if !ok { // the error that ends the watch
			break
		}
		if event.Type == watch.Deleted {
			if last := s.known[resource.GetName()]; last != nil {
				s.recordDeletion(last)
			}
		} else if err := s.observe(resource); err != nil {
			return err
		}
	}
	return nil
}

// observe records a new transfer or a changed phase.
func (s *kindRecorder) observe(resource *unstructured.Unstructured) error {
	now, err := View(resource)
	if err != nil {
		return err
	}
	last := s.known[now.Name]
	if last != nil && last.UID != now.UID { // its deletion was not observed
		s.recordDeletion(last)
		last = nil
	}
	s.known[now.Name] = now
	if last == nil {
		s.add(now, "", now.Status.Phase)
	} else if last.Status.Phase != now.Status.Phase {
		s.add(now, last.Status.Phase, now.Status.Phase)
	}
	return nil
}

// recordDeletion records the deletion of a transfer.
func (s *kindRecorder) recordDeletion(last *Transfer) {
	delete(s.known, last.Name)
	s.add(last, last.Status.Phase, Gone)
}

func (s *kindRecorder) add(transfer *Transfer, from, to Phase) {
	s.recorder.add(Transition{Kind: s.kind, Name: transfer.Name, Node: transfer.Node(), From: from, To: to, At: time.Now()})
}
