package agent

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/reconcile"
)

// sweeper removes what has outlived its transfer.
func (p *parts) sweeper(kinds []kind) *reconcile.Orphans {
	return &reconcile.Orphans{
		Client: p.clients.metadata, Namespace: p.Config.Namespace, Clock: p.Clock, Metrics: p.coordination,
		Owner: func(uid types.UID) (exists, done bool) {
			for _, k := range kinds {
				if exists, done := k.owner(uid); exists {
					return true, done
				}
			}
			return false, false
		},
	}
}

// owner tells whether a resource of this kind has the UID, and whether it is over for good.
func (l *line[T]) owner(uid types.UID) (exists, done bool) {
	for _, object := range l.resources.By(informers.ByUID, string(uid)) {
		state := l.transfers.Kind.Get(object)
		return true, state.Phase.Terminal() && !state.Finalizer
	}
	return false, false
}
