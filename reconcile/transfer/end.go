package transfer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lateen-project/lateen/exposer/build"
)

const sourceGone = "the pod whose volume is to be moved does not exist any more"

// succeeded ends a transfer whose mover succeeded, if its result says so, or notes what is left to do.
func succeeded(s State, seen Seen) Step {
	if seen.Result == nil {
		return failed(s, seen, ReasonUnreadable, "mover succeeded, but its result cannot be read: "+seen.Unreadable)
	}
	s.Outcome = *seen.Result
	s.Progress = Progress{Total: s.Outcome.TotalBytes, Done: s.Outcome.TotalBytes}
	s.Message = s.Outcome.Note
	if seen.Delivers {
		s.MovedAt = seen.Now
		return Step{Action: Write, State: s, Reason: ReasonMoved}
	}
	return end(s, seen, Completed, ReasonCompleted)
}

func failed(s State, seen Seen, reason Reason, message string) Step {
	s.Message, s.Progress = message, latest(s, seen)
	return end(s, seen, Failed, reason)
}

// canceled keeps the message that is there: whoever canceled may have said why.
func canceled(s State, seen Seen) Step {
	if s.Message == "" && s.Deleting {
		s.Message = "canceled because it is being deleted"
	}
	s.Progress = latest(s, seen)
	return end(s, seen, Canceled, ReasonCanceled)
}

// latest is how far the mover is: what it said last, or what is known if it said nothing since it
// started. What was said earlier is of the mover before it.
func latest(s State, seen Seen) Progress {
	if !s.TakesSlot() || seen.ProgressAt.Before(s.StartedAt) {
		return s.Progress
	}
	return seen.Progress
}

// end writes a terminal phase. What ends before it started has started then, as with Velero: clients read how long it took.
func end(s State, seen Seen, phase Phase, reason Reason) Step {
	s.Phase, s.CompletedAt, s.StartedAt, s.Restarting = phase, seen.Now, cmp.Or(s.StartedAt, seen.Now), false
	if s.Consumes && !s.Deleting {
		s.Finalizer = true // there is something to clean up
	}
	return Step{Action: Write, State: s, Reason: reason}
}

// restart gives a lost mover another try. That is counted first, with the reason; where its pod is still there, that
// goes next, and the phase goes back after that.
func restart(s State, seen Seen, lim Limits) Step {
	why, lost := seen.Exposure.Message, seen.Exposure.Reason
	if seen.Exposure.Condition == build.Absent {
		why, lost = "mover pod vanished", build.LostVanished
	}
	switch {
	case seen.SourceGone:
		return failed(s, seen, ReasonSourceGone, sourceGone)
	case seen.WentOn != "":
		return failed(s, seen, ReasonUnconfirmed, joined(why, seen.WentOn))
	case lost == build.LostNode && s.Local: // no other node has its volume
		return failed(s, seen, ReasonMoverLost, why)
	case s.Restarts >= lim.Retries:
		return failed(s, seen, ReasonMoverLost, fmt.Sprintf("%s; given up after %d restarts", why, s.Restarts))
	}
	s.Restarts++
	s.Exposer, s.AcceptedAt, s.Message = cmp.Or(s.Exposer, seen.Here), seen.Now, why
	s.Restarting = s.Phase.HasMover() && seen.Exposure.Condition != build.Absent && !unconfirmed(seen, lim)
	if !s.Restarting {
		s = again(s)
	}
	return Step{Action: Write, State: s, Reason: ReasonRestarted, Lost: lost}
}

// again is back in Accepted, as if nothing had been moved.
func again(s State) State {
	s.Phase, s.StartedAt, s.Progress, s.Restarting = Accepted, time.Time{}, Progress{}, false
	if !s.Local {
		s.Node = ""
	}
	return s
}

// replace removes the pod of a mover that was given up, and then goes back to Accepted: an agent of Velero, on whatever node,
// cancels what is Accepted and has a failed pod (velero-protocol 1.4). A pod that stays is waited for as long as the grace;
// the next mover is not made before it is gone.
func replace(s State, seen Seen, lim Limits) Step {
	left := until(s.AcceptedAt.Add(lim.EndGrace), seen)
	switch {
	case seen.SourceGone:
		return failed(s, seen, ReasonSourceGone, sourceGone)
	case seen.WentOn != "":
		return failed(s, seen, ReasonUnconfirmed, joined(s.Message, seen.WentOn))
	case seen.Exposure.Condition == build.Absent || left <= 0:
		return Step{Action: Write, State: again(s), Reason: ReasonRequeued}
	case seen.Exposure.Condition == build.Ending:
		return Step{After: left}
	}
	step := remove(seen, ReasonStale)
	step.After = left
	return step
}

// stalled gives a mover that reports nothing any more another try if it is the first one: what is stuck twice is not
// stuck by chance.
func stalled(s State, seen Seen, lim Limits) Step {
	why := fmt.Sprintf("mover stalled: no byte moved and no Event sent for %s", lim.StallTimeout)
	if s.Restarts > 0 {
		return failed(s, seen, ReasonMoverStalled, fmt.Sprintf("%s; given up after %d restarts", why, s.Restarts))
	}
	seen.Exposure.Message, seen.Exposure.Reason = why, build.LostStalled
	return restart(s, seen, lim)
}

// maxDoublings keeps the delay between two movers below three hours by default.
const maxDoublings = 10

// restartDelay is the time from giving a mover up to making the next one.
func restartDelay(restarts int, lim Limits) time.Duration {
	return lim.RestartDelay << min(max(restarts-1, 0), maxDoublings)
}

func prepareTimeout(seen Seen, lim Limits) string {
	why := cmp.Or(joined(seen.Exposure.Message, seen.Diagnosis), "the mover pod did not come to run")
	return fmt.Sprintf("not prepared within %s: %s", lim.PrepareTimeout, why)
}

// joined are those messages that are not empty.
func joined(messages ...string) string {
	messages = slices.DeleteFunc(messages, func(message string) bool { return message == "" })
	return strings.Join(messages, "; ")
}

// until is the time left before a deadline.
func until(deadline time.Time, seen Seen) time.Duration { return deadline.Sub(seen.Now) }

// NotDelivered ends a transfer that was moved and cannot be delivered; message says where it is kept.
func NotDelivered(s State, seen Seen, message string) Step {
	return failed(s, seen, ReasonNotDelivered, message)
}

// CannotExpose ends a transfer whose mover can never be made as things are.
func CannotExpose(s State, seen Seen, message string) Step {
	return failed(s, seen, ReasonHopeless, message)
}
