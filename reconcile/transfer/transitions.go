package transfer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

const sourceGone = "the pod whose volume is to be moved does not exist any more"

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
	s.Message, s.Progress = message, currentProgress(s, observed)
	return finish(s, observed, Failed, reason)
}

// canceled keeps an existing message: the client that canceled may have given a reason.
func canceled(s State, observed Observed) Step {
	if s.Message == "" && s.Deleting {
		s.Message = "canceled because the resource is being deleted"
	}
	s.Progress = currentProgress(s, observed)
	return finish(s, observed, Canceled, ReasonCanceled)
}

// currentProgress returns the last progress that the mover reported since its start. Without one it returns the
// progress in the state. An earlier report belongs to the previous mover.
func currentProgress(s State, observed Observed) Progress {
	if !s.TakesSlot() || observed.ProgressAt.Before(s.StartedAt) {
		return s.Progress
	}
	return observed.Progress
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

// restart replaces a lost mover. Its pod is deleted before the restart is counted: an agent of Velero on any node cancels
// an Accepted transfer with a failed pod (velero-protocol 1.4). Only a mover that is lost with its node in Accepted is
// counted first. It may still run, and an agent that is interrupted after the deletion would create the next mover with
// its claim.
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
	case s.Restarts >= lim.Retries:
		return failed(s, observed, ReasonMoverLost, fmt.Sprintf("%s; given up after %d restarts", loss.Message, s.Restarts))
	case observed.Exposure.Condition == objects.Absent, s.Phase.NeedsMover() && nodeLost, s.Phase.HasMover() && unconfirmed(observed, lim):
		return countRestart(s, observed, loss)
	}
	left := remainingUntilLost(observed, lim)
	if s.Phase.NeedsMover() {
		left = remaining(s.PrepareDeadline(lim), observed)
	}
	step := deleteMover(observed, ReasonStale, left)
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

// stalled restarts a mover that reports nothing new if no mover of the transfer was replaced before. A second stall
// is no coincidence, so it fails the transfer.
func stalled(s State, observed Observed, lim Limits) Step {
	why := fmt.Sprintf("mover stalled: no byte moved and no Event sent within %s", lim.StallTimeout)
	if s.Restarts > 0 {
		return failed(s, observed, ReasonMoverStalled, fmt.Sprintf("%s; given up after %d restarts", why, s.Restarts))
	}
	observed.Exposure.Message, observed.Exposure.Reason = why, objects.LostStalled
	return restart(s, observed, lim)
}

// maxDoublings keeps the delay between two movers below three hours by default.
const maxDoublings = 10

// restartDelay returns the time from giving up a mover to creating the next one.
func restartDelay(restarts int, lim Limits) time.Duration {
	return lim.RestartDelay << min(max(restarts-1, 0), maxDoublings)
}

func prepareTimeout(observed Observed, lim Limits) string {
	why := cmp.Or(joined(observed.Exposure.Message, observed.Loss.Message, observed.Diagnosis), "mover pod did not start running")
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
