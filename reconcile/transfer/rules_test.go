package transfer

import (
	"slices"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// rule is an invariant of every step, stated without Next.
type rule struct {
	name  string
	holds func(*situation) bool
}

func rules() []rule {
	return slices.Concat(ownershipRules(), beginningRules(), cleaningRules(), cancelRules(),
		moverRules(), restartRules(), endRules(), outcomeRules(), deliveryRules(), stepRules())
}

func implies(a, b bool) bool { return !a || b }

func (s *situation) in(phases ...Phase) bool { return slices.Contains(phases, s.State.Phase) }

// is reports whether the mover counts as being in one of the conditions. It may count as lost, whatever its pod
// status says.
func (s *situation) is(conditions ...objects.Condition) bool {
	condition := s.Observed.Exposure.Condition
	if s.nodeLost() || s.unconfirmed() {
		condition = objects.Lost
	}
	return slices.Contains(conditions, condition)
}

// nodeLost reports whether the mover is on a lost node and reported no end before.
func (s *situation) nodeLost() bool {
	working := []objects.Condition{objects.Pending, objects.Running, objects.Unrunnable, objects.Terminating}
	return s.Observed.NodeLost && slices.Contains(working, s.Observed.Exposure.Condition)
}

// unconfirmed reports whether the node of a deleting mover exceeds the grace period without confirming its end.
func (s *situation) unconfirmed() bool {
	return s.in(Prepared, InProgress, Canceling) && s.Observed.Exposure.Condition == objects.Terminating && !s.Observed.NodeLost && s.graceOver()
}

// graceOver reports whether the mover's pod is deleting for the grace period or longer.
func (s *situation) graceOver() bool {
	return !s.Observed.DeletingAt.IsZero() && s.left(s.Observed.DeletingAt, s.Limits.TerminationGrace) <= 0
}

// stranded reports whether a node-bound volume is on a lost node.
func (s *situation) stranded() bool { return s.State.NodeBound && s.nodeLost() }

// unmarked reports whether this agent now owns a transfer that an agent of Velero accepted.
func (s *situation) unmarked() bool {
	return s.in(Accepted) && s.exposes() && !s.State.NodeBound && s.State.Exposer == ""
}

// lostBy is the expected message about a lost mover.
func (s *situation) lostBy() string {
	switch {
	case s.nodeLost():
		return "mover counts as lost: node " + s.Observed.Exposure.Node + " is not Ready or does not exist"
	case s.Observed.Loss != (Loss{}):
		return s.Observed.Loss.Message
	case s.unconfirmed():
		return "mover pod is being deleted, but node " + s.Observed.Exposure.Node + " has not confirmed its end within 1m0s"
	case s.is(objects.Absent):
		return "mover pod vanished"
	case s.stalled():
		return "mover stalled: no byte moved and no Event sent within 2h0m0s"
	}
	return s.Observed.Exposure.Message
}

// writes reports whether the step writes one of these phases.
func (s *situation) writes(phases ...Phase) bool {
	return s.Step.Action == Write && slices.Contains(phases, s.Step.State.Phase)
}

// changes reports whether the step writes exactly the state with this change.
func (s *situation) changes(change func(*State)) bool {
	want := s.State
	change(&want)
	return s.Step.Action == Write && s.Step.State == want
}

// fails reports whether the step writes Failed with that reason and message.
func (s *situation) fails(reason Reason, message string) bool {
	return s.writes(Failed) && s.Step.Reason == reason && contains(s.Step.State.Message, message)
}

// waits reports whether the step is only a timer.
func (s *situation) waits(after time.Duration) bool {
	return s.Step == Step{WaitsFor: s.Step.WaitsFor, After: after}
}

func (s *situation) isNew() bool { return s.in(New) }

// stopRequested reports whether the transfer is canceled or deleting.
func (s *situation) stopRequested() bool { return s.State.Cancel || s.State.Deleting }

func (s *situation) exposes() bool { return s.Observed.Exposes && !s.State.Foreign }

// acts reports whether this agent acts on the transfer in its phase.
func (s *situation) acts() bool {
	switch s.State.Phase {
	case Prepared, InProgress, Canceling:
		return s.Observed.OwnsMover
	case New, Accepted, Completed, Failed, Canceled:
		return (s.Observed.Exposes || s.Observed.OwnsMover) && !s.State.Foreign
	}
	return false
}

// adopts reports whether this agent may only write Prepared.
func (s *situation) adopts() bool {
	return s.in(Accepted) && s.Observed.MayMarkPrepared && !s.Observed.Exposes && !s.Observed.OwnsMover
}

// moved reports whether only the rebind is left.
func (s *situation) moved() bool {
	return s.in(InProgress, Canceling) && !s.State.MoverSucceededAt.IsZero()
}

// works reports whether a mover may still work or be canceled.
func (s *situation) works() bool { return s.in(InProgress, Canceling) && !s.moved() }

// stale reports whether the observed mover was given up before.
func (s *situation) stale() bool {
	return !s.is(objects.Absent) && s.Observed.Exposure.Attempt < s.State.Restarts
}

// lostOrAbsent reports whether the mover is absent or lost.
func (s *situation) lostOrAbsent() bool { return s.is(objects.Absent, objects.Lost) }

// alive reports whether a mover may work and is not deleting.
func (s *situation) alive() bool { return s.is(objects.Pending, objects.Running, objects.Unrunnable) }

// stallsIn returns the time until a working mover counts as stalled; it may be negative. ever is false if the mover
// never counts as stalled.
func (s *situation) stallsIn() (left time.Duration, ever bool) {
	if !s.in(InProgress) || !s.works() || !s.is(objects.Running) || s.nodeLost() || s.Limits.StallTimeout == 0 {
		return 0, false
	}
	return s.left(s.Observed.ActiveAt, s.Limits.StallTimeout), true
}

// stalled reports whether a mover without a cancel has reported nothing for too long.
func (s *situation) stalled() bool {
	left, ever := s.stallsIn()
	return ever && left <= 0 && s.acts() && !s.stopRequested()
}

// preparing reports whether only the mover can end the preparation: no cancel, no lost source and no prepare
// timeout does.
func (s *situation) preparing() bool {
	return s.in(Accepted) && !s.stopRequested() && s.sourceWaits() && !s.late() && !s.stranded() && !s.unmarked()
}

// late reports whether the prepare timeout has passed, and this agent has no mover that it may mark as prepared.
func (s *situation) late() bool {
	runs := s.acts() && s.is(objects.Running) && !s.stale() && s.Observed.MayMarkPrepared
	return s.left(s.State.AcceptedAt, s.Limits.PrepareTimeout) <= 0 && !runs
}

// ready is the counterpart of preparing for a transfer that waits for its slot.
func (s *situation) ready() bool {
	return s.in(Prepared) && !s.stopRequested() && s.sourceWaits()
}

// sourceWaits reports whether the pod of the volume exists and a mover may write to the volume.
func (s *situation) sourceWaits() bool { return !s.Observed.SourceGone && s.Observed.PodResumed == "" }

// ends reports whether the step writes a terminal phase.
func (s *situation) ends() bool {
	return !s.in(Completed, Failed, Canceled) && s.writes(Completed, Failed, Canceled)
}

// removes reports whether the step deletes a mover.
func (s *situation) removes() bool { return s.Step.Action == DeleteMover || s.Step.Action == CleanUp }

// restarts reports whether the step replaces a mover.
func (s *situation) restarts() bool {
	return s.Step.Action == Write && s.Step.State.Restarts > s.State.Restarts
}

// left returns the time left of a bound.
func (s *situation) left(since time.Time, bound time.Duration) time.Duration {
	return since.Add(bound).Sub(s.Observed.Now)
}
