package transfer

import (
	"cmp"
	"fmt"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Next returns the next step of a transfer, given the resource and what the agent observes around it. A step has at
// most one effect, so a crash at any point leaves a situation that Next handles.
//
//	New ─▶ Accepted ─▶ Prepared ─▶ InProgress ─▶ Completed | Failed
//	            ▲          │            │  │
//	            └─ restart ┴────────────┘  └▶ Canceling ─▶ Canceled
//
// A mover that is given up is deleted before its restart is counted (see restart). A cancel before InProgress leads
// to Canceled at once. Cleanup starts after the terminal phase is written: exposed objects are deleted first, the
// finalizer is removed last. A restored volume is rebound between the mover's success and Completed; no other step is
// possible in that time.
func Next(s State, observed Observed, lim Limits) Step {
	if s.Foreign || !observed.Acts() {
		return wait(WaitAgent, 0)
	}
	observed.Exposure = effectiveExposure(s, observed, lim)
	switch s.Phase {
	case New:
		return reconcileNew(s, observed, lim)
	case Accepted:
		return accepted(s, observed, lim)
	case Prepared:
		return prepared(s, observed, lim)
	case InProgress:
		return inProgress(s, observed, lim)
	case Canceling:
		return canceling(s, observed, lim)
	case Completed, Failed, Canceled:
		return terminal(s, observed, lim)
	}
	return wait(WaitNewPhase, 0)
}

// reconcileNew handles a transfer without an acceptor. An agent that stands in for an unavailable one only finishes
// transfers here; it accepts none.
func reconcileNew(s State, observed Observed, lim Limits) Step {
	switch {
	case s.Cancel || s.Deleting:
		return canceled(s, observed)
	case s.UnsupportedReason != "" && (observed.Home != "" || observed.WaitingFor == ""): // else its node may be one of Velero's agents
		return failed(s, observed, ReasonUnsupported, s.UnsupportedReason)
	case !observed.Eligible && observed.SourceGone:
		return failed(s, observed, ReasonSourceGone, sourceGone)
	case observed.PodResumed != "":
		return failed(s, observed, ReasonUnconfirmed, observed.PodResumed)
	case !observed.Eligible && observed.Unbounded:
		return wait(WaitPrecondition, lim.PrepareTimeout)
	case !observed.Eligible:
		if left := remaining(observed.WaitsSince.Add(lim.PrepareTimeout), observed); left > 0 {
			return wait(WaitPrecondition, left)
		}
		return failed(s, observed, ReasonNotEligible, fmt.Sprintf("not ready to be prepared within %s: %s", lim.PrepareTimeout, observed.WaitingFor))
	case observed.Exposes && !observed.Admitted && s.OwnsSnapshot && !s.Finalizer:
		s.Finalizer = true // it may be deleted before its turn, and its snapshot must not stay
		return write(s, ReasonQueued)
	case !observed.Exposes || !observed.Admitted:
		return wait(WaitAdmission, 0)
	}
	s.Phase, s.AcceptedAt, s.Acceptor, s.Exposer, s.Finalizer = Accepted, observed.Now, observed.ThisNode, observed.ThisNode, true
	s.StorageClass = observed.StorageClass
	if s.NodeBound {
		s.Node, s.Exposer = observed.Home, observed.Home
	}
	return write(s, ReasonAccepted)
}

// accepted checks in order: a reason to finish, a blocker, a ready mover, a missing mover. An agent that only has
// MayMarkPrepared writes Prepared and takes no other step. A mover that runs counts as prepared even after the timeout:
// its agent may have been away for that long.
func accepted(s State, observed Observed, lim Limits) Step {
	mover := observed.Exposure
	left := remaining(s.PrepareDeadline(lim), observed)
	ready := mover.Condition == objects.Running && mover.Attempt >= s.Restarts && observed.MayMarkPrepared
	ended := s.Cancel || s.Deleting || observed.SourceGone || observed.PodResumed != "" || left <= 0
	switch {
	case !observed.Exposes && !observed.OwnsMover && (ended || !ready):
		return wait(WaitAgent, 0)
	case s.Cancel || s.Deleting:
		return canceled(s, observed)
	case observed.SourceGone:
		return failed(s, observed, ReasonSourceGone, sourceGone)
	case observed.PodResumed != "":
		return failed(s, observed, ReasonUnconfirmed, joined(s.Message, observed.PodResumed))
	case left <= 0 && !ready:
		return failed(s, observed, ReasonPrepareTimeout, prepareTimeout(observed, lim))
	case mover.Reason == objects.LostNode && s.NodeBound:
		return restart(s, observed, lim)
	case observed.NodeLost && s.NodeBound && mover.Condition == objects.Absent:
		return failed(s, observed, ReasonMoverLost, joined(s.Message, fmt.Sprintf("node %s is not Ready or does not exist", observed.Home)))
	case observed.Exposes && s.Exposer == "" && s.UnsupportedReason != "": // an agent of Velero has accepted it
		return failed(s, observed, ReasonUnsupported, s.UnsupportedReason)
	case observed.Exposes && !s.NodeBound && s.Exposer == "":
		return takeOver(s, observed)
	case mover.Condition != objects.Absent && mover.Attempt < s.Restarts:
		return deleteStale(s, observed, left)
	case ready:
		s.Phase, s.Node, s.Exposer = Prepared, mover.Node, cmp.Or(s.Exposer, observed.ThisNode)
		return write(s, ReasonPrepared)
	case !observed.Exposes:
		return wait(WaitAgent, left)
	}
	return exposing(s, observed, lim, left)
}

// exposing returns the step for a mover that does not run yet.
func exposing(s State, observed Observed, lim Limits, left time.Duration) Step {
	switch observed.Exposure.Condition {
	case objects.Absent:
		if observed.Loss != (Loss{}) {
			return restart(s, observed, lim)
		}
		if pause := remaining(s.AcceptedAt.Add(restartDelay(s.Restarts, lim)), observed); s.Restarts > 0 && pause > 0 {
			return wait(WaitRestartDelay, min(pause, left))
		}
		return Step{Action: Expose, After: left}
	case objects.Unrunnable:
		return failed(s, observed, ReasonCannotRun, observed.Exposure.Message)
	case objects.Lost:
		return restart(s, observed, lim)
	case objects.Failed:
		return failed(s, observed, ReasonMoverFailed, observed.Exposure.Message)
	case objects.Succeeded:
		return failed(s, observed, ReasonMoverFailed, "mover ended before its start")
	case objects.Terminating:
		return wait(WaitMoverEnd, left)
	case objects.Pending, objects.Running:
	}
	return wait(WaitMoverStart, left)
}

// deleteStale deletes a mover that was already given up, so that the next one can be created.
func deleteStale(s State, observed Observed, left time.Duration) Step {
	if !observed.Exposes || observed.Exposure.Condition == objects.Terminating {
		return wait(WaitMoverEnd, left)
	}
	return deleteMover(s, observed, ReasonStale, left)
}

func prepared(s State, observed Observed, lim Limits) Step {
	switch {
	case !observed.OwnsMover:
		return wait(WaitAgent, 0)
	case s.Cancel || s.Deleting:
		return canceled(s, observed)
	case observed.SourceGone:
		return failed(s, observed, ReasonSourceGone, sourceGone)
	case observed.PodResumed != "":
		return failed(s, observed, ReasonUnconfirmed, joined(s.Message, observed.PodResumed))
	}
	switch observed.Exposure.Condition {
	case objects.Running:
		if !observed.HasSlot {
			return wait(WaitSlot, observed.SlotIn)
		}
		s.Phase, s.StartedAt, s.NodeOS = InProgress, observed.Now, observed.Exposure.OS
		return write(s, ReasonStarted)
	case objects.Absent, objects.Lost:
		return restart(s, observed, lim)
	case objects.Failed:
		return failed(s, observed, ReasonMoverFailed, observed.Exposure.Message)
	case objects.Unrunnable:
		return failed(s, observed, ReasonCannotRun, observed.Exposure.Message)
	case objects.Succeeded:
		return failed(s, observed, ReasonMoverFailed, "mover ended before its start")
	case objects.Terminating:
		return wait(WaitMoverEnd, remainingUntilLost(observed, lim))
	case objects.Pending:
	}
	return wait(WaitMoverStart, 0)
}

func inProgress(s State, observed Observed, lim Limits) Step {
	switch {
	case !observed.OwnsMover:
		return wait(WaitAgent, 0)
	case !s.MoverSucceededAt.IsZero():
		return rebind(s, observed, lim)
	}
	switch observed.Exposure.Condition {
	case objects.Succeeded:
		return succeeded(s, observed)
	case objects.Failed:
		if observed.Exposure.Canceled && (s.Cancel || s.Deleting) {
			return canceled(s, observed)
		}
		return failed(s, observed, ReasonMoverFailed, observed.Exposure.Message)
	case objects.Absent, objects.Lost:
		if s.Cancel || s.Deleting {
			return canceled(s, observed)
		}
		return restart(s, observed, lim)
	case objects.Pending, objects.Running, objects.Unrunnable, objects.Terminating:
	}
	switch {
	case s.Cancel:
		s.Phase = Canceling
		return write(s, ReasonCanceling)
	case s.Deleting: // no other change in this write: the mover reacts to exactly this update
		s.Cancel = true
		return write(s, ReasonDeleting)
	case observed.Exposure.Condition == objects.Terminating: // the next mover does not continue this progress
		return wait(WaitMoverEnd, remainingUntilLost(observed, lim))
	}
	return running(s, observed, lim)
}

// running returns the step for a working mover, which may have stalled.
func running(s State, observed Observed, lim Limits) Step {
	if lim.StallTimeout <= 0 || observed.Exposure.Condition != objects.Running {
		return wait(WaitNothing, 0)
	}
	left := remaining(observed.ActiveAt.Add(lim.StallTimeout), observed)
	if left <= 0 {
		return stalled(s, observed, lim)
	}
	return wait(WaitNothing, left)
}

// NextProgress returns the step of the coordinator after a mover's report: it writes the progress. An earlier report
// belongs to the previous mover.
func NextProgress(s State, report Report, now time.Time, lim Limits) Step {
	if s.Foreign || !s.Phase.IsMoving() || s.Cancel || s.Deleting || !s.MoverSucceededAt.IsZero() || report.At.Before(s.StartedAt) || report.Progress == s.Progress {
		return wait(WaitNothing, 0)
	}
	if early := s.StartedAt.Add(lim.FirstProgress).Sub(now); early > 0 {
		return wait(WaitNothing, early)
	}
	s.Progress = report.Progress
	return write(s, ReasonProgress)
}

func canceling(s State, observed Observed, lim Limits) Step {
	switch {
	case !observed.OwnsMover:
		return wait(WaitAgent, 0)
	case !s.MoverSucceededAt.IsZero():
		return rebind(s, observed, lim)
	}
	switch observed.Exposure.Condition {
	case objects.Succeeded:
		return succeeded(s, observed)
	case objects.Failed:
		if observed.Exposure.Canceled {
			return canceled(s, observed)
		}
		return failed(s, observed, ReasonMoverFailed, observed.Exposure.Message)
	case objects.Absent, objects.Lost:
		return canceled(s, observed)
	case objects.Terminating:
		return wait(WaitMoverEnd, remainingUntilLost(observed, lim))
	case objects.Pending, objects.Running, objects.Unrunnable:
	}
	left := remaining(observed.CanceledAt.Add(lim.CancelGrace), observed)
	if !observed.Started || left <= 0 { // a mover that has not started may never see the cancel
		return deleteMover(s, observed, ReasonCancelTimeout, 0)
	}
	return wait(WaitCancel, left)
}

// rebind returns the step after the mover succeeded. Neither the loss of the mover nor a cancel changes anything
// from then on. Each agent has a grace period for its own first try, even after the timeout. It may be the first
// live agent since the mover's success.
func rebind(s State, observed Observed, lim Limits) Step {
	if observed.Rebound {
		return finish(s, observed, Completed, ReasonCompleted)
	}
	first := cmp.Or(observed.RebindingSince, observed.Now)
	left := max(remaining(s.MoverSucceededAt.Add(cmp.Or(s.RebindTimeout, lim.RebindTimeout)), observed), remaining(first.Add(lim.RebindGrace), observed))
	if left <= 0 {
		return Step{Action: AbandonRebind}
	}
	return Step{Action: Rebind, After: left}
}

func terminal(s State, observed Observed, lim Limits) Step {
	untilWarning := time.Duration(0)
	if observed.Exposure.Condition == objects.Terminating {
		untilWarning = max(remaining(observed.DeletingAt.Add(lim.CleanUpWarning), observed), 0)
	}
	switch {
	case observed.Exposure.Condition == objects.Absent && !observed.HasLeftovers:
	case observed.Exposure.Condition == objects.Terminating && !observed.HasLeftovers:
		return wait(WaitMoverEnd, untilWarning)
	default:
		return Step{Action: CleanUp, Force: s.ForcesEnd(observed), After: untilWarning}
	}
	if !s.HasLeftovers() {
		return wait(WaitNothing, 0)
	}
	s.Finalizer, s.Exposer, s.StorageClass = false, "", ""
	return write(s, ReasonCleaned)
}
