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

// story is a recorder's look at one kind.
type story struct {
	recorder *Recorder
	kind     Kind
	client   dynamic.ResourceInterface
	known    map[string]*Transfer // as last seen, by name
}

// list catches up with what is there, and returns from which version on to watch.
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

// follow watches until ctx is done. The watch goes on by itself where it broke off; if it cannot, it begins anew.
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

// watch returns nil when the API server does not know the version any more.
func (s *story) watch(ctx context.Context, version string) error {
	source := &cache.ListWatch{WatchFuncWithContext: s.client.Watch}
	watcher, err := watchtools.NewRetryWatcherWithContext(ctx, version, source)
	if err != nil {
		return fmt.Errorf("watch %ss: %w", s.kind, err)
	}
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		resource, ok := event.Object.(*unstructured.Unstructured)
		if !ok { // the error that ends it
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

// see tells the recorder if a transfer is new or in another phase.
func (s *story) see(resource *unstructured.Unstructured) error {
	now, err := View(resource)
	if err != nil {
		return err
	}
	last := s.known[now.Name]
	if last != nil && last.UID != now.UID { // nobody has told of its deletion
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

// lose tells the recorder that a transfer is gone.
func (s *story) lose(last *Transfer) {
	delete(s.known, last.Name)
	s.tell(last, last.Status.Phase, Gone)
}

func (s *story) tell(transfer *Transfer, from, to Phase) {
	s.recorder.add(Transition{Kind: s.kind, Name: transfer.Name, Node: transfer.Node(), From: from, To: to, At: time.Now()})
}
