package transfer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

const sourceGone = "the pod whose volume is to be moved has ended, or does not exist any more"

// takeOver records this agent as the exposer of a transfer whose acceptor, an agent of Velero, is unavailable. The
// transfer stays Lateen's if that agent returns, because that agent would not continue it (velero-protocol 1.6).
func takeOver(s State, observed Observed) Step {
	s.Exposer = observed.ThisNode
	return write(s, ReasonTakenOver)
}

// succeeded finishes a transfer whose mover succeeded, or records that only the rebind is left. An unreadable
// result is a failure.
func succeeded(s State, observed Observed) Step {
	if observed.Result == nil {
		return failed(s, observed, ReasonUnreadable, "mover succeeded, but its result is unreadable: "+observed.ResultError)
	}
	s.Outcome = *observed.Result
	s.Progress = Progress{Total: s.Outcome.TotalBytes, Done: s.Outcome.TotalBytes}
	s.Message = s.Outcome.Note
	if observed.Rebinds {
		s.MoverSucceededAt = observed.Now
		return write(s, ReasonMoved)
	}
	return finish(s, observed, Completed, ReasonCompleted)
}

func failed(s State, observed Observed, reason Reason, message string) Step {
	s.Message, s.Progress = s.withVolume(message), currentProgress(s, observed)
	return finish(s, observed, Failed, reason)
}

// withVolume adds to a message where the volume is that was not restored in place. The target claim is not bound to it.
func (s State) withVolume(message string) string {
	if s.InPlace == "" || !s.MoverSucceededAt.IsZero() {
		return message
	}
	return joined(message, fmt.Sprintf("PersistentVolume %s stays as it is; bind a claim to it by hand once its mover and restore claim are deleted", s.InPlace))
}

// canceled keeps an existing message: the client that canceled may have given a reason.
func canceled(s State, observed Observed) Step {
	if s.Message == "" && s.Deleting {
		s.Message = "canceled because the resource is being deleted"
	}
	s.Message, s.Progress = s.withVolume(s.Message), currentProgress(s, observed)
	return finish(s, observed, Canceled, ReasonCanceled)
}

// currentProgress returns the last progress that the mover reported since its start, else that of the state. An earlier
// report belongs to the previous mover.
func currentProgress(s State, observed Observed) Progress {
	if !s.TakesSlot() || observed.Report.At.Before(s.StartedAt) {
		return s.Progress
	}
	return observed.Report.Progress
}

// finish writes a terminal phase. A transfer that never started gets its completion time as start time, as with
// Velero: clients compute the duration.
func finish(s State, observed Observed, phase Phase, reason Reason) Step {
	s.Phase, s.CompletedAt, s.StartedAt = phase, observed.Now, cmp.Or(s.StartedAt, observed.Now)
	if s.OwnsSnapshot && !s.Deleting {
		s.Finalizer = true // cleanup deletes the snapshot
	}
	return write(s, reason)
}

// restart replaces a lost mover. Its pod is deleted before the restart is written (countRestart): an agent of Velero on
// any node cancels an Accepted transfer with a failed pod (velero-protocol 1.4). Only for a mover that is lost with its
// node in Accepted, the restart is written first. It may still run, and an agent that is interrupted after the deletion
// would create the next mover with its claim.
func restart(s State, observed Observed, lim Limits) Step {
	loss := Loss{Reason: observed.Exposure.Reason, Message: observed.Exposure.Message}
	nodeLost := loss.Reason == objects.LostNode
	if !nodeLost {
		loss = cmp.Or(observed.Loss, loss, Vanished())
	}
	switch {
	case observed.SourceGone:
		return failed(s, observed, ReasonSourceGone, sourceGone)
	case observed.PodResumed != "":
		return failed(s, observed, ReasonUnconfirmed, joined(loss.Message, observed.PodResumed))
	case nodeLost && s.NodeBound: // no other node has its volume
		return failed(s, observed, ReasonMoverLost, loss.Message)
	case s.InPlace != "" && s.Phase.HasMover() && (observed.NodeLost || observed.Home != observed.ThisNode):
		// Only the kubelet of its node confirms that a mover has ended. With the Node, its pod is deleted while it may still write.
		return failed(s, observed, ReasonMoverLost, loss.Message)
	case s.Restarts >= lim.Retries:
		return failed(s, observed, ReasonMoverLost, fmt.Sprintf("%s; given up after %d restarts", loss.Message, s.Restarts))
	case observed.Exposure.Condition == objects.Absent, s.Phase.NeedsMover() && nodeLost, s.Phase.HasMover() && exceedsTerminationGrace(observed, lim):
		return countRestart(s, observed, loss)
	}
	left := remainingUntilLost(observed, lim)
	if s.Phase.NeedsMover() {
		left = remaining(s.PrepareDeadline(lim), observed)
	}
	step := deleteMover(s, observed, ReasonStale, left)
	step.Loss = loss
	return step
}

// countRestart returns the transfer to Accepted, without start time and progress.
func countRestart(s State, observed Observed, loss Loss) Step {
	s.Restarts++
	s.Exposer, s.AcceptedAt, s.Message = cmp.Or(s.Exposer, observed.ThisNode), observed.Now, loss.Message
	s.Phase, s.StartedAt, s.Progress = Accepted, time.Time{}, Progress{}
	if !s.NodeBound {
		s.Node = ""
	}
	step := write(s, ReasonRestarted)
	step.Loss = loss
	return step
}

// stalled restarts a mover that reports nothing new. If any mover of the transfer was replaced before, for whatever
// reason, it fails the transfer: each stall occupies a slot for StallTimeout, and State does not have the reasons of
// earlier restarts.
func stalled(s State, observed Observed, lim Limits) Step {
	why := fmt.Sprintf("mover stalled: no byte moved and no Event sent within %s", lim.StallTimeout)
	if s.Restarts > 0 || lim.Retries == 0 {
		return failed(s, observed, ReasonMoverStalled, fmt.Sprintf("%s; given up after %d restarts", why, s.Restarts))
	}
	observed.Exposure.Message, observed.Exposure.Reason = why, objects.LostStalled
	return restart(s, observed, lim)
}

// restartDelay returns the time from giving up a mover to creating the next one. It doubles, but leaves the next one most of the
// prepare timeout, which has begun, too.
func restartDelay(restarts int, lim Limits) time.Duration {
	const maxDoublings = 10 // keeps the time from overflowing
	return min(lim.RestartDelay<<min(max(restarts-1, 0), maxDoublings), lim.PrepareTimeout/4)
}

func prepareTimeout(observed Observed, lim Limits) string {
	why := cmp.Or(joined(cmp.Or(observed.Loss.Message, observed.Exposure.Message), observed.Diagnosis), "mover pod did not start running")
	return fmt.Sprintf("not prepared within %s: %s", lim.PrepareTimeout, why)
}

// joined joins the messages that are not empty.
func joined(messages ...string) string {
	messages = slices.DeleteFunc(messages, func(message string) bool { return message == "" })
	return strings.Join(messages, "; ")
}

// CompleteRebind completes a transfer whose target is bound at the deadline of the rebind. The message says what is left to do.
func CompleteRebind(s State, observed Observed, message string) Step {
	s.Message = joined(s.Message, message)
	return finish(s, observed, Completed, ReasonCompleted)
}

// FailRebind fails a transfer whose data is moved but whose volume cannot be rebound. The message says where the
// volume is kept.
func FailRebind(s State, observed Observed, message string) Step {
	return failed(s, observed, ReasonRebindFailed, message)
}

// FailExpose fails a transfer whose mover can never be created in the current state.
func FailExpose(s State, observed Observed, message string) Step {
	return failed(s, observed, ReasonCannotRun, message)
}

// Vanished returns the loss of a mover whose pod was deleted by another client.
func Vanished() Loss { return Loss{Reason: objects.LostVanished, Message: "mover pod vanished"} }

// effectiveExposure returns the exposure that the state machine acts on. A mover on a lost node is lost, whatever its pod
// status says: no kubelet updates that pod. A mover whose pod keeps deleting on a live node, or cannot be deleted, is
// lost after a grace period. The next mover is still created only after that pod is deleted. A result that the mover reported always
// counts.
func effectiveExposure(s State, observed Observed, lim Limits) objects.Exposure {
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
	case s.Phase.HasMover() && exceedsTerminationGrace(observed, lim):
		mover.Condition, mover.Reason = objects.Lost, objects.LostDeleted
		mover.Message = fmt.Sprintf("mover pod is being deleted, but node %s has not confirmed its end within %s", mover.Node, lim.TerminationGrace)
	}
	return mover
}

// exceedsTerminationGrace reports whether a mover pod has been deleting for longer than the grace period.
func exceedsTerminationGrace(observed Observed, lim Limits) bool {
	return remainingUntilLost(observed, lim) <= 0
}

// remainingUntilLost returns the time until a mover whose pod is deleting, or is being deleted now, counts as lost.
func remainingUntilLost(observed Observed, lim Limits) time.Duration {
	return remaining(cmp.Or(observed.DeletingAt, observed.Now).Add(lim.TerminationGrace), observed)
}

// Action is the one effect of a step.
type Action int

// The effects of steps.
const (
	Wait          Action = iota // do nothing; an event or the timer triggers the next reconcile
	Write                       // write State to the custom resource
	Expose                      // create the missing objects, the mover last
	Rebind                      // bind the restored volume to the target claim
	AbandonRebind               // end a rebind that is late: the target is bound by now, or the restored volume is kept
	DeleteMover                 // delete the mover pod, and nothing else
	CleanUp                     // delete everything that was exposed
)

// WaitReason is what a transfer waits for while no step is due.
type WaitReason string

// The reasons of Wait.
const (
	WaitNothing      WaitReason = ""             // its mover works, or it is settled
	WaitNewPhase     WaitReason = "newPhase"     // its phase is of a newer Velero
	WaitAgent        WaitReason = "agent"        // the step of another agent
	WaitPrecondition WaitReason = "precondition" // of being accepted: see Observed.WaitingFor
	WaitAdmission    WaitReason = "admission"    // a place among the transfers that are being prepared
	WaitRestartDelay WaitReason = "restartDelay" // the time between two movers
	WaitMoverStart   WaitReason = "moverStart"   // its mover pod to run
	WaitSlot         WaitReason = "slot"         // a slot of its node
	WaitCancel       WaitReason = "cancel"       // its mover to stop after a cancel
	WaitMoverEnd     WaitReason = "moverEnd"     // the kubelet to end its mover pod
)

// Step is the next step of a transfer.
type Step struct {
	Action   Action
	State    State         // for Write
	After    time.Duration // requeue after this delay, whatever the action; 0 is never
	WaitsFor WaitReason    // for Wait
	Reason   Reason        // for Write and DeleteMover
	Force    bool          // for DeleteMover and CleanUp: no kubelet can confirm the end of the mover
	Loss     Loss          // for a restart, and for the deletion before it: why the mover was lost
}

// wait changes nothing until an event, but no longer than the delay; 0 is no limit.
func wait(reason WaitReason, delay time.Duration) Step { return Step{WaitsFor: reason, After: delay} }

func write(s State, reason Reason) Step { return Step{Action: Write, State: s, Reason: reason} }

// deleteMover deletes the mover pod.
func deleteMover(s State, observed Observed, reason Reason, after time.Duration) Step {
	return Step{Action: DeleteMover, Reason: reason, Force: s.ForcesEnd(observed), After: after}
}

// ForcesEnd reports whether the deletion of a mover is forced: on a lost node, as elsewhere its containers may run, and unless its
// volume is restored in place, as it may be used again.
func (s State) ForcesEnd(observed Observed) bool { return observed.NodeLost && s.InPlace == "" }
