package reconcile

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// request is one resource as one reconcile observes it.
type request[T transfer.Object] struct {
	key           string
	object        T
	state         transfer.State
	move          objects.MoverSpec
	pod           *corev1.Pod                     // the mover pod, or nil
	claims        []*corev1.PersistentVolumeClaim // claims created for it that only the API server returned
	requeueWithin time.Duration                   // when to observe it again at the latest; 0: as the step says
	cachesLag     bool                            // only the API server has pod and claims: no event reports their deletion
	reservations  reservations
	observed      transfer.Observed
}

func (t *TransferReconciler[T]) newRequest(key string, object T) *request[T] {
	return &request[T]{key: key, object: object, state: t.Kind.Get(object), move: t.movement(object)}
}

// movement returns the MoverSpec of a resource, with this agent as the exposing node.
func (t *TransferReconciler[T]) movement(object T) objects.MoverSpec {
	move := t.Kind.Movement(object, t.ResourceTimeout)
	move.GVK, move.PodLabel = t.Kind.GVK, t.Kind.PodLabel
	move.Attempt, move.ExposingNode = t.Kind.Get(object).Restarts, t.Agent.Node
	return move
}

// reservations is what reserve acquires for a transfer, as one reconcile observes it.
type reservations struct {
	targetClaim bool // the target claim, until the transfer is accepted
	targetPod   bool // to be enqueued when its target pod changes
	slot        bool // a slot, because its mover is ready to start
	delayed     bool // no slot yet: another restore to its pod must end first
}
