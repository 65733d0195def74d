package transfer

import (
	"cmp"
	"fmt"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Vanished returns the loss of a mover whose pod was deleted by another client.
func Vanished() Loss { return Loss{Reason: objects.LostVanished, Message: "mover pod vanished"} }

// counted returns the exposure that the state machine acts on. A mover on a lost node is lost, whatever its pod
// status says: no kubelet updates that pod. A mover whose pod keeps deleting on a live node is lost after a grace
// period. The next mover is still created only after that pod is deleted. A result that the mover reported always
// counts.
func counted(s State, observed Observed, lim Limits) objects.Exposure {
	mover := observed.Exposure
	switch mover.Condition {
	case objects.Absent, objects.Lost, objects.Succeeded, objects.Failed:
		return mover
	case objects.Pending, objects.Running, objects.Unrunnable, objects.Terminating:
	}
	switch {
	case observed.NodeLost:
		mover.Condition, mover.Reason = objects.Lost, objects.LostNode
		mover.Message = fmt.Sprintf("mover counts as lost: node %s is not Ready or does not exist", mover.Node)
	case s.Phase.HasMover() && unconfirmed(observed, lim):
		mover.Condition, mover.Reason = objects.Lost, objects.LostDeleted
		mover.Message = fmt.Sprintf("mover pod is being deleted, but node %s has not confirmed its end within %s", mover.Node, lim.TerminationGrace)
	}
	return mover
}

// unconfirmed reports whether a mover pod has been deleting for longer than the grace period.
func unconfirmed(observed Observed, lim Limits) bool { return remainingUntilLost(observed, lim) <= 0 }

// remainingUntilLost returns the time until a mover whose pod is deleting, or is being deleted now, counts as lost.
func remainingUntilLost(observed Observed, lim Limits) time.Duration {
	return remaining(cmp.Or(observed.DeletingAt, observed.Now).Add(lim.TerminationGrace), observed)
}
