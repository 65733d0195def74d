package transfer

import (
	"cmp"
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
// A mover that was given up once it was Prepared is removed before the phase goes back: see replace. Whatever is not
// InProgress is Canceled at once. A terminal phase is written first; what was exposed
// is removed next; the finalizer goes last. What a mover has restored is delivered between its success
// and Completed, and nothing but that can happen then.
func Next(s State, seen Seen, lim Limits) Step {
	near := seen.Near && s.Phase == Accepted
	if s.Foreign || !seen.Mine && !seen.Follow && !near {
		return Step{}
	}
	seen.Exposure = counted(s, seen, lim)
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
		return ended(s, seen, lim)
	}
	return Step{} // a phase of a newer Velero: not ours to touch
}

// fresh may be looked at by an agent that stands in for an absent one: it ends what must end, and
// accepts nothing.
func fresh(s State, seen Seen, lim Limits) Step {
	switch {
	case s.Cancel || s.Deleting:
		return canceled(s, seen)
	case s.Refusal != "":
		return failed(s, seen, ReasonUnsupported, s.Refusal)
	case !seen.Eligible && seen.SourceGone:
		return failed(s, seen, ReasonSourceGone, sourceGone)
	case !seen.Eligible && seen.Unbounded:
		return Step{After: lim.PrepareTimeout}
	case !seen.Eligible:
		if left := until(seen.WaitsSince.Add(lim.PrepareTimeout), seen); left > 0 {
			return Step{After: left}
		}
		return failed(s, seen, ReasonNotEligible, fmt.Sprintf("not ready to be prepared after %s: %s", lim.PrepareTimeout, seen.Awaits))
	case !seen.Mine || !seen.Room:
		return Step{}
	}
	s.Phase, s.AcceptedAt, s.Acceptor, s.Exposer, s.Finalizer = Accepted, seen.Now, seen.Here, seen.Here, true
	if s.Local {
		s.Node = seen.Here
	}
	return Step{Action: Write, State: s, Reason: ReasonAccepted}
}

// accepted is a ladder: what ends it, what is in the way, what is ready, what is missing. An agent that
// is merely near says that the mover runs, and leaves everything else to whom it belongs.
func accepted(s State, seen Seen, lim Limits) Step {
	mover := seen.Exposure
	left := until(s.AcceptedAt.Add(lim.PrepareTimeout), seen)
	ready := mover.Condition == build.Running && mover.Attempt >= s.Restarts && seen.Near
	ended := s.Cancel || s.Deleting || seen.SourceGone || seen.WentOn != "" || left <= 0
	switch {
	case !seen.Mine && !seen.Follow && (ended || !ready):
		return Step{}
	case s.Cancel || s.Deleting:
		return canceled(s, seen)
	case seen.SourceGone:
		return failed(s, seen, ReasonSourceGone, sourceGone)
	case seen.WentOn != "":
		return failed(s, seen, ReasonUnconfirmed, joined(s.Message, seen.WentOn))
	case left <= 0:
		return failed(s, seen, ReasonPrepareTimeout, prepareTimeout(seen, lim))
	case mover.Reason == build.LostNode && s.Local:
		return restart(s, seen, lim)
	case seen.Mine && !s.Local && s.Exposer == "":
		return takenOver(s, seen)
	case mover.Condition != build.Absent && mover.Attempt < s.Restarts:
		return stale(seen, left)
	case ready:
		s.Phase, s.Node, s.Exposer = Prepared, mover.Node, cmp.Or(s.Exposer, seen.Here)
		return Step{Action: Write, State: s, Reason: ReasonPrepared}
	case !seen.Mine:
		return Step{After: left}
	}
	return exposing(s, seen, lim, left)
}

// exposing is what follows from the mover while it does not run.
func exposing(s State, seen Seen, lim Limits, left time.Duration) Step {
	switch seen.Exposure.Condition {
	case build.Absent:
		if pause := until(s.AcceptedAt.Add(restartDelay(s.Restarts, lim)), seen); s.Restarts > 0 && pause > 0 {
			return Step{After: min(pause, left)}
		}
		return Step{Action: Expose, After: left}
	case build.Stuck:
		return failed(s, seen, ReasonHopeless, seen.Exposure.Message)
	case build.Lost:
		return restart(s, seen, lim)
	case build.Failed:
		return failed(s, seen, ReasonMoverFailed, seen.Exposure.Message)
	case build.Succeeded:
		return failed(s, seen, ReasonMoverFailed, "mover ended before it was told to start")
	case build.Pending, build.Running, build.Ending:
	}
	return Step{After: left}
}

// stale clears a mover that was already given up out of the way of the next one.
func stale(seen Seen, left time.Duration) Step {
	if !seen.Mine || seen.Exposure.Condition == build.Ending {
		return Step{After: left}
	}
	return remove(seen, ReasonStale)
}

func prepared(s State, seen Seen, lim Limits) Step {
	switch {
	case !seen.Follow:
		return Step{}
	case s.Cancel || s.Deleting:
		return canceled(s, seen)
	case seen.SourceGone:
		return failed(s, seen, ReasonSourceGone, sourceGone)
	case seen.WentOn != "":
		return failed(s, seen, ReasonUnconfirmed, joined(s.Message, seen.WentOn))
	case s.Restarting:
		return replace(s, seen, lim)
	}
	switch seen.Exposure.Condition {
	case build.Running:
		if !seen.Slot {
			return Step{After: seen.SlotIn}
		}
		s.Phase, s.StartedAt, s.NodeOS = InProgress, seen.Now, seen.Exposure.OS
		return Step{Action: Write, State: s, Reason: ReasonStarted}
	case build.Absent, build.Lost:
		return restart(s, seen, lim)
	case build.Failed:
		return failed(s, seen, ReasonMoverFailed, seen.Exposure.Message)
	case build.Stuck:
		return failed(s, seen, ReasonHopeless, seen.Exposure.Message)
	case build.Succeeded:
		return failed(s, seen, ReasonMoverFailed, "mover ended before it was told to start")
	case build.Ending:
		return Step{After: untilLost(seen, lim)}
	case build.Pending:
	}
	return Step{}
}

func inProgress(s State, seen Seen, lim Limits) Step {
	switch {
	case !seen.Follow:
		return Step{}
	case !s.MovedAt.IsZero():
		return moved(s, seen, lim)
	case s.Restarting && (s.Cancel || s.Deleting):
		return canceled(s, seen)
	case s.Restarting:
		return replace(s, seen, lim)
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
	case seen.Exposure.Condition == build.Ending: // its progress is not of the next mover
		return Step{After: untilLost(seen, lim)}
	}
	return running(s, seen, lim)
}

// running is what follows from what a mover that works reports, or does not.
func running(s State, seen Seen, lim Limits) Step {
	var left time.Duration // until it counts as stalled
	if lim.StallTimeout > 0 && seen.Exposure.Condition == build.Running {
		if left = until(seen.ActiveAt.Add(lim.StallTimeout), seen); left <= 0 {
			return stalled(s, seen, lim)
		}
	}
	if latest(s, seen) == s.Progress {
		return Step{After: left}
	}
	if early := until(s.StartedAt.Add(lim.FirstProgress), seen); early > 0 {
		return Step{After: early}
	}
	s.Progress = latest(s, seen)
	return Step{Action: Write, State: s, Reason: ReasonProgress}
}

func canceling(s State, seen Seen, lim Limits) Step {
	switch {
	case !seen.Follow:
		return Step{}
	case !s.MovedAt.IsZero():
		return moved(s, seen, lim)
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
		return Step{After: untilLost(seen, lim)}
	case build.Pending, build.Running, build.Stuck:
	}
	left := until(seen.CanceledAt.Add(lim.CancelGrace), seen)
	if !seen.Started || left <= 0 { // a mover that has not started may never see the cancel
		return remove(seen, ReasonNoAnswer)
	}
	return Step{After: left}
}

// moved is what is left when the mover has succeeded: neither its end nor a cancel changes anything now. However late it
// is, each agent has a grace for its own first try: it may be the first one that is alive since the mover's success.
func moved(s State, seen Seen, lim Limits) Step {
	if seen.Delivered {
		return end(s, seen, Completed, ReasonCompleted)
	}
	first := cmp.Or(seen.DeliveringSince, seen.Now)
	left := max(until(s.MovedAt.Add(cmp.Or(s.DeliverIn, lim.DeliverTimeout)), seen), until(first.Add(lim.DeliverGrace), seen))
	if left <= 0 {
		return Step{Action: Keep, Reason: ReasonNotDelivered}
	}
	return Step{Action: Deliver, After: left}
}

func ended(s State, seen Seen, lim Limits) Step {
	switch {
	case seen.Exposure.Condition == build.Absent && !seen.Remains:
	case seen.Exposure.Condition == build.Ending && !seen.Remains:
		return Step{After: max(until(seen.EndingAt.Add(lim.CleanUpWarning), seen), 0)}
	default:
		return remove(seen, ReasonCleaned)
	}
	if !s.HasLeftovers() {
		return Step{}
	}
	s.Finalizer, s.Exposer = false, ""
	return Step{Action: Write, State: s, Reason: ReasonCleaned}
}
