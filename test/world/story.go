package world

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

// story records the transitions of one kind.
type story struct {
	recorder *Recorder
	kind     Kind
	client   dynamic.ResourceInterface
	known    map[string]*Transfer // the last observed state by name
}

// list records the current state and returns the version at which to start a watch.
func (s *story) list(ctx context.Context) (version string, err error) {
	list, err := s.client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("list %ss: %w", s.kind, err)
	}
	deleted := maps.Clone(s.known)
	for i := range list.Items {
		delete(deleted, list.Items[i].GetName())
		if err := s.see(&list.Items[i]); err != nil {
			return "", err
		}
	}
	for _, last := range deleted {
		s.lose(last)
	}
	return list.GetResourceVersion(), nil
}

// follow watches until ctx is done. The watch resumes by itself after an interruption. If it cannot, follow lists
// again.
func (s *story) follow(ctx context.Context, version string) {
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
func (s *story) watch(ctx context.Context, version string) error {
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
				s.lose(last)
			}
		} else if err := s.see(resource); err != nil {
			return err
		}
	}
	return nil
}

// see records a new transfer or a changed phase.
func (s *story) see(resource *unstructured.Unstructured) error {
	now, err := View(resource)
	if err != nil {
		return err
	}
	last := s.known[now.Name]
	if last != nil && last.UID != now.UID { // its deletion was not observed
		s.lose(last)
		last = nil
	}
	s.known[now.Name] = now
	if last == nil {
		s.tell(now, "", now.Status.Phase)
	} else if last.Status.Phase != now.Status.Phase {
		s.tell(now, last.Status.Phase, now.Status.Phase)
	}
	return nil
}

// lose records the deletion of a transfer.
func (s *story) lose(last *Transfer) {
	delete(s.known, last.Name)
	s.tell(last, last.Status.Phase, Gone)
}

func (s *story) tell(transfer *Transfer, from, to Phase) {
	s.recorder.add(Transition{Kind: s.kind, Name: transfer.Name, Node: transfer.Node(), From: from, To: to, At: time.Now()})
}
