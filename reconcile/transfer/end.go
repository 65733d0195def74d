package transfer

import (
	"fmt"
	"time"

	"github.com/lateen-project/lateen/exposer/build"
)

const sourceGone = "the pod whose volume is to be moved does not exist any more"

// emptyVolume is Velero's message for a volume without files.
const emptyVolume = "volume was empty so no snapshot was taken"

// succeeded ends a transfer whose mover succeeded, if its result says so.
func succeeded(s State, seen Seen) Step {
	if seen.Result == nil {
		return failed(s, seen, ReasonUnreadable, "mover succeeded, but its result cannot be read: "+seen.Unreadable)
	}
	s.Outcome = *seen.Result
	s.Progress = Progress{Total: s.Outcome.TotalBytes, Done: s.Outcome.TotalBytes}
	s.Message = ""
	if s.Outcome.Empty {
		s.Message = emptyVolume
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
	if !s.Phase.TakesSlot() || seen.ProgressAt.Before(s.StartedAt) {
		return s.Progress
	}
	return seen.Progress
}

func end(s State, seen Seen, phase Phase, reason Reason) Step {
	s.Phase, s.CompletedAt = phase, seen.Now
	return Step{Action: Write, State: s, Reason: reason}
}

// restart gives a lost mover another try: back to Accepted, as if nothing had been moved.
func restart(s State, seen Seen, lim Limits) Step {
	why, lost := seen.Exposure.Message, seen.Exposure.Reason
	if seen.Exposure.Condition == build.Absent {
		why, lost = "mover pod vanished", build.LostVanished
	}
	switch {
	case seen.SourceGone:
		return failed(s, seen, ReasonSourceGone, sourceGone)
	case s.Restarts >= lim.Retries:
		return failed(s, seen, ReasonMoverLost, fmt.Sprintf("%s; given up after %d restarts", why, s.Restarts))
	}
	s.Restarts++
	s.Phase, s.AcceptedAt, s.StartedAt = Accepted, seen.Now, time.Time{}
	s.Node, s.Progress, s.Message = "", Progress{}, why
	return Step{Action: Write, State: s, Reason: ReasonRestarted, Lost: lost}
}

// maxDoublings keeps the delay between two movers below three hours by default.
const maxDoublings = 10

// restartDelay is the time from giving a mover up to making the next one.
func restartDelay(restarts int, lim Limits) time.Duration {
	return lim.RestartDelay << min(max(restarts-1, 0), maxDoublings)
}

func prepareTimeout(seen Seen, lim Limits) string {
	why := seen.Exposure.Message
	if seen.Exposure.Condition == build.Absent {
		why = seen.ExposeErr
	}
	if why == "" {
		why = "the mover pod did not come to run"
	}
	return fmt.Sprintf("not prepared within %s: %s", lim.PrepareTimeout, why)
}

// until is the time left before a deadline.
func until(deadline time.Time, seen Seen) time.Duration { return deadline.Sub(seen.Now) }

// CannotExpose ends a transfer whose mover can never be made as things are.
func CannotExpose(s State, seen Seen, message string) Step {
	return failed(s, seen, ReasonHopeless, message)
}
