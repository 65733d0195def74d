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

func (m *situation) in(phases ...Phase) bool { return slices.Contains(phases, m.State.Phase) }

// is reports whether the mover counts as being in one of the conditions. It may count as lost, whatever its pod
// status says.
func (m *situation) is(conditions ...objects.Condition) bool {
	condition := m.Observed.Exposure.Condition
	if m.nodeLost() || m.unconfirmed() {
		condition = objects.Lost
	}
	return slices.Contains(conditions, condition)
}

// nodeLost reports whether the mover is on a lost node and reported no end before.
func (m *situation) nodeLost() bool {
	working := []objects.Condition{objects.Pending, objects.Running, objects.Unrunnable, objects.Terminating}
	return m.Observed.NodeLost && slices.Contains(working, m.Observed.Exposure.Condition)
}

// unconfirmed reports whether the node of a deleting mover exceeds the grace period without confirming its end.
func (m *situation) unconfirmed() bool {
	return m.in(Prepared, InProgress, Canceling) && m.Observed.Exposure.Condition == objects.Terminating && !m.Observed.NodeLost && m.left(m.Observed.DeletingAt, m.Limits.TerminationGrace) <= 0
}

// stranded reports whether a node-bound volume is on a lost node.
func (m *situation) stranded() bool { return m.State.NodeBound && m.nodeLost() }

// unmarked reports whether this agent now owns a transfer that an agent of Velero accepted.
func (m *situation) unmarked() bool {
	return m.in(Accepted) && m.exposes() && !m.State.NodeBound && m.State.Exposer == ""
}

// lostBy is the expected message about a lost mover.
func (m *situation) lostBy() string {
	switch {
	case m.nodeLost():
		return "mover counts as lost: node " + m.Observed.Exposure.Node + " is not Ready or does not exist"
	case m.unconfirmed():
		return "mover pod is being deleted, but node " + m.Observed.Exposure.Node + " has not confirmed its end within 1m0s"
	case m.Observed.Loss != (Loss{}):
		return m.Observed.Loss.Message
	case m.is(objects.Absent):
		return "mover pod vanished"
	case m.stalled():
		return "mover stalled: no byte moved and no Event sent within 2h0m0s"
	}
	return m.Observed.Exposure.Message
}

// writes reports whether the step writes one of these phases.
func (m *situation) writes(phases ...Phase) bool {
	return m.Step.Action == Write && slices.Contains(phases, m.Step.State.Phase)
}

// changes reports whether the step writes exactly the state with this change.
func (m *situation) changes(change func(*State)) bool {
	want := m.State
	change(&want)
	return m.Step.Action == Write && m.Step.State == want
}

// fails reports whether the step writes Failed with that reason and message.
func (m *situation) fails(reason Reason, message string) bool {
	return m.writes(Failed) && m.Step.Reason == reason && contains(m.Step.State.Message, message)
}

// waits reports whether the step is only a timer.
func (m *situation) waits(after time.Duration) bool { return m.Step == Step{After: after} }

func (m *situation) isNew() bool { return m.in(New) }

// stopRequested reports whether the transfer is canceled or deleting.
func (m *situation) stopRequested() bool { return m.State.Cancel || m.State.Deleting }

func (m *situation) exposes() bool { return m.Observed.Exposes && !m.State.Foreign }

// acts reports whether this agent acts on the transfer in its phase.
func (m *situation) acts() bool {
	switch m.State.Phase {
	case Prepared, InProgress, Canceling:
		return m.Observed.OwnsMover
	case New, Accepted, Completed, Failed, Canceled:
		return (m.Observed.Exposes || m.Observed.OwnsMover) && !m.State.Foreign
	}
	return false
}

// adopts reports whether this agent may only write Prepared.
func (m *situation) adopts() bool {
	return m.in(Accepted) && m.Observed.MayMarkPrepared && !m.Observed.Exposes && !m.Observed.OwnsMover
}

// moved reports whether only the rebind is left.
func (m *situation) moved() bool {
	return m.in(InProgress, Canceling) && !m.State.MoverSucceededAt.IsZero()
}

// works reports whether a mover may still work or be canceled.
func (m *situation) works() bool { return m.in(InProgress, Canceling) && !m.moved() && !m.replaces() }

// replaces reports whether a mover was given up and its pod must be deleted before the phase becomes Accepted.
func (m *situation) replaces() bool { return m.in(Prepared, InProgress) && m.State.Restarting }

// stale reports whether the observed mover was given up before.
func (m *situation) stale() bool {
	return !m.is(objects.Absent) && m.Observed.Exposure.Attempt < m.State.Restarts
}

// lostOrAbsent reports whether the mover is absent or lost.
func (m *situation) lostOrAbsent() bool { return m.is(objects.Absent, objects.Lost) }

// alive reports whether a mover may work and is not deleting.
func (m *situation) alive() bool { return m.is(objects.Pending, objects.Running, objects.Unrunnable) }

// stallsIn returns the time until a working mover counts as stalled; it may be negative. ever is false if the mover
// never counts as stalled.
func (m *situation) stallsIn() (left time.Duration, ever bool) {
	if !m.in(InProgress) || !m.works() || !m.is(objects.Running) || m.nodeLost() || m.Limits.StallTimeout == 0 {
		return 0, false
	}
	return m.left(m.Observed.ActiveAt, m.Limits.StallTimeout), true
}

// stalled reports whether a mover without a cancel has reported nothing for too long.
func (m *situation) stalled() bool {
	left, ever := m.stallsIn()
	return ever && left <= 0 && m.acts() && !m.stopRequested()
}

// preparing reports whether only the mover can end the preparation: no cancel, no lost source and no prepare
// timeout does.
func (m *situation) preparing() bool {
	return m.in(Accepted) && !m.stopRequested() && m.sourceWaits() && !m.late() && !m.stranded() && !m.unmarked()
}

// late reports whether the prepare timeout has passed, and this agent has no mover that it may mark as prepared.
func (m *situation) late() bool {
	runs := m.acts() && m.is(objects.Running) && !m.stale() && m.Observed.MayMarkPrepared
	return m.left(m.State.AcceptedAt, m.Limits.PrepareTimeout) <= 0 && !runs
}

// ready is the counterpart of preparing for a transfer that waits for its slot.
func (m *situation) ready() bool {
	return m.in(Prepared) && !m.stopRequested() && m.sourceWaits() && !m.replaces()
}

// sourceWaits reports whether the pod of the volume exists and a mover may write to the volume.
func (m *situation) sourceWaits() bool { return !m.Observed.SourceGone && m.Observed.PodResumed == "" }

// ends reports whether the step writes a terminal phase.
func (m *situation) ends() bool {
	return !m.in(Completed, Failed, Canceled) && m.writes(Completed, Failed, Canceled)
}

// removes reports whether the step deletes a mover.
func (m *situation) removes() bool { return m.Step.Action == DeleteMover || m.Step.Action == CleanUp }

// restarts reports whether the step replaces a mover.
func (m *situation) restarts() bool {
	return m.Step.Action == Write && m.Step.State.Restarts > m.State.Restarts
}

// left returns the time left of a bound.
func (m *situation) left(since time.Time, bound time.Duration) time.Duration {
	return since.Add(bound).Sub(m.Observed.Now)
}
