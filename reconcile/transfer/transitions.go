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

// succeeded ends a transfer whose mover succeeded, if its result says so, or notes what is left to do.
func succeeded(s State, observed Observed) Step {
	if observed.Result == nil {
		return failed(s, observed, ReasonUnreadable, "mover succeeded, but its result cannot be read: "+observed.ResultError)
	}
	s.Outcome = *observed.Result
	s.Progress = Progress{Total: s.Outcome.TotalBytes, Done: s.Outcome.TotalBytes}
	s.Message = s.Outcome.Note
	if observed.Rebinds {
		s.MoverSucceededAt = observed.Now
		return Step{Action: Write, State: s, Reason: ReasonMoved}
	}
	return finish(s, observed, Completed, ReasonCompleted)
}

func failed(s State, observed Observed, reason Reason, message string) Step {
	s.Message, s.Progress = message, currentProgress(s, observed)
	return finish(s, observed, Failed, reason)
}

// canceled keeps the message that is there: whoever canceled may have said why.
func canceled(s State, observed Observed) Step {
	if s.Message == "" && s.Deleting {
		s.Message = "canceled because it is being deleted"
	}
	s.Progress = currentProgress(s, observed)
	return finish(s, observed, Canceled, ReasonCanceled)
}

// currentProgress is how far the mover is: what it said last, or what is known if it said nothing since it
// started. What was said earlier is of the mover before it.
func currentProgress(s State, observed Observed) Progress {
	if !s.TakesSlot() || observed.ProgressAt.Before(s.StartedAt) {
		return s.Progress
	}
	return observed.Progress
}

// finish writes a terminal phase. What ends before it started has started then, as with Velero: clients read how long it took.
func finish(s State, observed Observed, phase Phase, reason Reason) Step {
	s.Phase, s.CompletedAt, s.StartedAt, s.Restarting = phase, observed.Now, cmp.Or(s.StartedAt, observed.Now), false
	if s.OwnsSnapshot && !s.Deleting {
		s.Finalizer = true // there is something to clean up
	}
	return Step{Action: Write, State: s, Reason: reason}
}

// restart gives a lost mover another try. That is counted first, with the reason; where its pod is still there, that
// goes next, and the phase goes back after that.
func restart(s State, observed Observed, lim Limits) Step {
	why, lost := observed.Exposure.Message, observed.Exposure.Reason
	if observed.Exposure.Condition == objects.Absent {
		why, lost = "mover pod vanished", objects.LostVanished
	}
	switch {
	case observed.SourceGone:
		return failed(s, observed, ReasonSourceGone, sourceGone)
	case observed.PodResumed != "":
		return failed(s, observed, ReasonUnconfirmed, joined(why, observed.PodResumed))
	case lost == objects.LostNode && s.NodeBound: // no other node has its volume
		return failed(s, observed, ReasonMoverLost, why)
	case s.Restarts >= lim.Retries:
		return failed(s, observed, ReasonMoverLost, fmt.Sprintf("%s; given up after %d restarts", why, s.Restarts))
	}
	s.Restarts++
	s.Exposer, s.AcceptedAt, s.Message = cmp.Or(s.Exposer, observed.ThisNode), observed.Now, why
	s.Restarting = s.Phase.HasMover() && observed.Exposure.Condition != objects.Absent && !unconfirmed(observed, lim)
	if !s.Restarting {
		s = requeue(s)
	}
	return Step{Action: Write, State: s, Reason: ReasonRestarted, Lost: lost}
}

// requeue is back in Accepted, as if nothing had been moved.
func requeue(s State) State {
	s.Phase, s.StartedAt, s.Progress, s.Restarting = Accepted, time.Time{}, Progress{}, false
	if !s.NodeBound {
		s.Node = ""
	}
	return s
}

// replace removes the pod of a mover that was given up, and then goes back to Accepted: an agent of Velero, on whatever node,
// cancels what is Accepted and has a failed pod (velero-protocol 1.4). A pod that stays is waited for as long as the grace;
// the next mover is not made before it is gone.
func replace(s State, observed Observed, lim Limits) Step {
	left := remaining(s.AcceptedAt.Add(lim.TerminationGrace), observed)
	switch {
	case observed.SourceGone:
		return failed(s, observed, ReasonSourceGone, sourceGone)
	case observed.PodResumed != "":
		return failed(s, observed, ReasonUnconfirmed, joined(s.Message, observed.PodResumed))
	case observed.Exposure.Condition == objects.Absent || left <= 0:
		return Step{Action: Write, State: requeue(s), Reason: ReasonRequeued}
	case observed.Exposure.Condition == objects.Terminating:
		return Step{After: left}
	}
	step := remove(observed, ReasonStale)
	step.After = left
	return step
}

// stalled gives a mover that reports nothing any more another try if it is the first one: what is stuck twice is not
// stuck by chance.
func stalled(s State, observed Observed, lim Limits) Step {
	why := fmt.Sprintf("mover stalled: no byte moved and no Event sent for %s", lim.StallTimeout)
	if s.Restarts > 0 {
		return failed(s, observed, ReasonMoverStalled, fmt.Sprintf("%s; given up after %d restarts", why, s.Restarts))
	}
	observed.Exposure.Message, observed.Exposure.Reason = why, objects.LostStalled
	return restart(s, observed, lim)
}

// maxDoublings keeps the delay between two movers below three hours by default.
const maxDoublings = 10

// restartDelay is the time from giving a mover up to making the next one.
func restartDelay(restarts int, lim Limits) time.Duration {
	return lim.RestartDelay << min(max(restarts-1, 0), maxDoublings)
}

func prepareTimeout(observed Observed, lim Limits) string {
	why := cmp.Or(joined(observed.Exposure.Message, observed.Diagnosis), "the mover pod did not come to run")
	return fmt.Sprintf("not prepared within %s: %s", lim.PrepareTimeout, why)
}

// joined are those messages that are not empty.
func joined(messages ...string) string {
	messages = slices.DeleteFunc(messages, func(message string) bool { return message == "" })
	return strings.Join(messages, "; ")
}

// remaining is the time left before a deadline.
func remaining(deadline time.Time, observed Observed) time.Duration {
	return deadline.Sub(observed.Now)
}

// FailRebind ends a transfer that was moved and cannot be delivered; message says where it is kept.
func FailRebind(s State, observed Observed, message string) Step {
	return failed(s, observed, ReasonRebindFailed, message)
}

// FailExpose ends a transfer whose mover can never be made as things are.
func FailExpose(s State, observed Observed, message string) Step {
	return failed(s, observed, ReasonCannotRun, message)
}
