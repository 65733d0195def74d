package transfer

import (
	"fmt"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// counted is the exposure as the protocol counts it. A mover whose node is lost is lost with it, whatever its pod
// says: nobody updates that pod any more. A mover whose pod is deleting, and stays so on a node that answers, is given
// up after a grace; the next one is still not made before that pod is gone. What a mover has reported counts for ever.
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
		mover.Message = fmt.Sprintf("node %s is not Ready or does not exist, so its mover counts as lost", mover.Node)
	case s.Phase.HasMover() && unconfirmed(observed, lim):
		mover.Condition, mover.Reason = objects.Lost, objects.LostDeleted
		mover.Message = fmt.Sprintf("mover pod is being deleted and node %s has not confirmed its end within %s", mover.Node, lim.TerminationGrace)
	}
	return mover
}

// unconfirmed tells whether the pod of a mover has been deleting for longer than the grace, on a node that is not lost.
func unconfirmed(observed Observed, lim Limits) bool {
	return !observed.DeletingAt.IsZero() && !observed.NodeLost && remainingUntilLost(observed, lim) <= 0
}

// remainingUntilLost is how long a mover whose pod is deleting is still waited for.
func remainingUntilLost(observed Observed, lim Limits) time.Duration {
	return remaining(observed.DeletingAt.Add(lim.TerminationGrace), observed)
}

// remove deletes what is there. Only where no kubelet answers is a pod deleted by force: its containers may still run.
func remove(observed Observed, reason Reason) Step {
	return Step{Action: Remove, Reason: reason, Force: observed.NodeLost}
}

// takeOver marks a transfer whose acceptor, an agent of Velero, went away: it stays Lateen's should that agent return,
// which would not go on where it stopped (velero-protocol 1.6).
func takeOver(s State, observed Observed) Step {
	s.Exposer = observed.ThisNode
	return Step{Action: Write, State: s, Reason: ReasonTakenOver}
}
