package transfer

import (
	"fmt"
	"time"

	"github.com/lateen-project/lateen/exposer/build"
)

// Next is the whole protocol: what is to be done, given the resource and what is seen around it. It
// asks for one effect at most, so that a crash at any point leaves a situation which Next handles.
//
//	New ─▶ Accepted ─▶ Prepared ─▶ InProgress ─▶ Completed | Failed
//	            ▲          │            │  │
//	            └─ restart ┴────────────┘  └▶ Canceling ─▶ Canceled
//
// Whatever is not InProgress is Canceled at once. A terminal phase is written first; what was exposed
// is removed next; the finalizer goes last.
func Next(s State, seen Seen, lim Limits) Step {
	if !seen.Mine && !seen.Follow {
		return Step{}
	}
	switch s.Phase {
	case "", New:
		return fresh(s, seen, lim)
	case Accepted:
		return accepted(s, seen, lim)
	case Prepared:
		return prepared(s, seen, lim)
	case InProgress:
		return inProgress(s, seen, lim)
	case Canceling:
		return canceling(s, seen, lim)
	case Completed, Failed, Canceled:
		return ended(s, seen)
	}
	return Step{} // a phase of a newer Velero: not ours to touch
}

func fresh(s State, seen Seen, lim Limits) Step {
	switch {
	case !seen.Mine:
		return Step{}
	case s.Cancel || s.Deleting:
		return canceled(s, seen)
	case s.Refusal != "":
		return failed(s, seen, ReasonUnsupported, s.Refusal)
	case !seen.Eligible:
		if left := until(s.CreatedAt.Add(lim.PrepareTimeout), seen); left > 0 {
			return Step{After: left}
		}
		return failed(s, seen, ReasonNotEligible, fmt.Sprintf("not ready to be prepared after %s", lim.PrepareTimeout))
	case !seen.Room:
		return Step{}
	}
	s.Phase, s.AcceptedAt, s.Finalizer = Accepted, seen.Now, true
	return Step{Action: Write, State: s, Reason: ReasonAccepted}
}

// accepted is a ladder: what ends it, what is in the way, what is ready, what is missing.
func accepted(s State, seen Seen, lim Limits) Step {
	mover := seen.Exposure
	left := until(s.AcceptedAt.Add(lim.PrepareTimeout), seen)
	switch {
	case s.Cancel || s.Deleting:
		return canceled(s, seen)
	case seen.SourceGone:
		return failed(s, seen, ReasonSourceGone, sourceGone)
	case left <= 0:
		return failed(s, seen, ReasonPrepareTimeout, prepareTimeout(seen, lim))
	case mover.Condition != build.Absent && mover.Attempt < s.Restarts:
		return stale(seen, left)
	case mover.Condition == build.Running && mover.Node == seen.Here:
		s.Phase, s.Node = Prepared, mover.Node
		return Step{Action: Write, State: s, Reason: ReasonPrepared}
	case !seen.Mine:
		return Step{}
	case mover.Condition == build.Absent:
		if pause := until(s.AcceptedAt.Add(restartDelay(s.Restarts, lim)), seen); s.Restarts > 0 && pause > 0 {
			return Step{After: min(pause, left)}
		}
		return Step{Action: Expose, After: left}
	case mover.Condition == build.Stuck:
		return failed(s, seen, ReasonHopeless, mover.Message)
	case mover.Condition == build.Lost:
		return restart(s, seen, lim)
	case mover.Condition == build.Failed:
		return failed(s, seen, ReasonMoverFailed, mover.Message)
	case mover.Condition == build.Succeeded:
		return failed(s, seen, ReasonMoverFailed, "mover ended before it was told to start")
	}
	return Step{After: left}
}

// stale clears a mover that was already given up out of the way of the next one.
func stale(seen Seen, left time.Duration) Step {
	if !seen.Mine || seen.Exposure.Condition == build.Ending {
		return Step{After: left}
	}
	return Step{Action: Remove, Reason: ReasonStale}
}

func prepared(s State, seen Seen, lim Limits) Step {
	switch {
	case !seen.Follow:
		return Step{}
	case s.Cancel || s.Deleting:
		return canceled(s, seen)
	case seen.SourceGone:
		return failed(s, seen, ReasonSourceGone, sourceGone)
	}
	switch seen.Exposure.Condition {
	case build.Running:
		if !seen.Slot {
			return Step{}
		}
		s.Phase, s.StartedAt = InProgress, seen.Now
		return Step{Action: Write, State: s, Reason: ReasonStarted}
	case build.Absent, build.Lost:
		return restart(s, seen, lim)
	case build.Failed:
		return failed(s, seen, ReasonMoverFailed, seen.Exposure.Message)
	case build.Stuck:
		return failed(s, seen, ReasonHopeless, seen.Exposure.Message)
	case build.Succeeded:
		return failed(s, seen, ReasonMoverFailed, "mover ended before it was told to start")
	case build.Pending, build.Ending:
	}
	return Step{}
}

func inProgress(s State, seen Seen, lim Limits) Step {
	if !seen.Follow {
		return Step{}
	}
	switch seen.Exposure.Condition {
	case build.Succeeded:
		return succeeded(s, seen)
	case build.Failed:
		if seen.Exposure.Canceled && (s.Cancel || s.Deleting) {
			return canceled(s, seen)
		}
		return failed(s, seen, ReasonMoverFailed, seen.Exposure.Message)
	case build.Absent, build.Lost:
		if s.Cancel || s.Deleting {
			return canceled(s, seen)
		}
		return restart(s, seen, lim)
	case build.Pending, build.Running, build.Stuck, build.Ending:
	}
	switch {
	case s.Cancel:
		s.Phase = Canceling
		return Step{Action: Write, State: s, Reason: ReasonCanceling}
	case s.Deleting: // nothing else in this write: the mover reacts to exactly this update
		s.Cancel = true
		return Step{Action: Write, State: s, Reason: ReasonDeleting}
	case latest(s, seen) != s.Progress:
		s.Progress = latest(s, seen)
		return Step{Action: Write, State: s, Reason: ReasonProgress}
	}
	return Step{}
}

func canceling(s State, seen Seen, lim Limits) Step {
	if !seen.Follow {
		return Step{}
	}
	switch seen.Exposure.Condition {
	case build.Succeeded:
		return succeeded(s, seen)
	case build.Failed:
		if seen.Exposure.Canceled {
			return canceled(s, seen)
		}
		return failed(s, seen, ReasonMoverFailed, seen.Exposure.Message)
	case build.Absent, build.Lost:
		return canceled(s, seen)
	case build.Ending:
		return Step{}
	case build.Pending, build.Running, build.Stuck:
	}
	left := until(seen.CanceledAt.Add(lim.CancelGrace), seen)
	if !seen.Started || left <= 0 { // a mover that has not started may never see the cancel
		return Step{Action: Remove, Reason: ReasonNoAnswer}
	}
	return Step{After: left}
}

func ended(s State, seen Seen) Step {
	switch seen.Exposure.Condition {
	case build.Absent:
	case build.Ending:
		return Step{}
	case build.Pending, build.Running, build.Stuck, build.Lost, build.Succeeded, build.Failed:
		return Step{Action: Remove, Reason: ReasonCleaned}
	}
	if !s.Finalizer {
		return Step{}
	}
	s.Finalizer = false
	return Step{Action: Write, State: s, Reason: ReasonCleaned}
}
