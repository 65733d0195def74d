package node

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/lateen-project/lateen/test/testenv"
)

// place is the scope of a watch that movers share. The watch ends with the node.
type place struct {
	node, namespace string
	kind            testenv.Kind
}

// follow returns channels for the start and the cancel of a transfer. As in Velero's mover, a cancel counts only as an
// update of an uncanceled resource in phase InProgress.
func (s *StandIn) follow(host Host, namespace string, role role) (
	started <-chan *testenv.Transfer, canceled <-chan struct{}, stop func(), err error,
) {
	starts, cancels := make(chan *testenv.Transfer, 1), make(chan struct{}, 1)
	see := func(object any) *testenv.Transfer {
		transfer := look(object, role.name)
		if transfer == nil || transfer.Status.Phase != testenv.InProgress {
			return nil
		}
		select {
		case starts <- transfer:
		default: // one signal is enough
		}
		return transfer
	}
	informer := s.cache(host, place{node: host.Node, namespace: namespace, kind: role.kind})
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { see(object) },
		UpdateFunc: func(old, object any) {
			now, before := see(object), look(old, role.name)
			if now == nil || before == nil || !now.Spec.Cancel || before.Spec.Cancel {
				return
			}
			select {
			case cancels <- struct{}{}:
			default: // one signal is enough
			}
		},
	})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("watch %ss: %w", role.kind, err)
	}
	return starts, cancels, func() { _ = informer.RemoveEventHandler(registration) }, nil
}

// look returns the transfer of a watch event if it has that name. Many movers share the watch.
func look(object any, name string) *testenv.Transfer {
	resource, ok := object.(*unstructured.Unstructured)
	if !ok || resource.GetName() != name {
		return nil
	}
	transfer, err := testenv.View(resource)
	if err != nil { // the API server validates all fields of a Transfer
		return nil
	}
	return transfer
}

// cache returns the watch of a kind in a namespace. The first mover there starts it.
func (s *StandIn) cache(host Host, here place) cache.SharedIndexInformer {
	s.lock.Lock()
	defer s.lock.Unlock()
	if informer := s.caches[here]; informer != nil {
		return informer
	}
	informer := dynamicinformer.NewFilteredDynamicInformer(s.transfers, here.kind.Resource(), here.namespace, 0, nil, nil).Informer()
	s.caches[here] = informer
	host.Beside(func(ctx context.Context) {
		informer.RunWithContext(ctx)
		s.lock.Lock()
		defer s.lock.Unlock()
		delete(s.caches, here)
	})
	return informer
}
