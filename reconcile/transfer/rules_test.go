package transfer

import (
	"slices"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// rule is what holds for every step, said without Next, and a Next that breaks it.
type rule struct {
	says   string
	holds  func(*moment) bool
	broken decide
}

func rules() []rule {
	return slices.Concat(ownershipRules(), beginningRules(), cleaningRules(), cancelRules(),
		moverRules(), restartRules(), endRules(), outcomeRules(), deliveryRules(), stepRules())
}

// output is a Next whose steps are changed.
func output(change func(*Step, State, Observed)) decide {
	return func(s State, observed Observed, lim Limits) Step {
		step := Next(s, observed, lim)
		change(&step, s, observed)
		return step
	}
}

// input is a Next that sees something else than there is.
func input(change func(*State, *Observed, *Limits)) decide {
	return func(s State, observed Observed, lim Limits) Step {
		change(&s, &observed, &lim)
		return Next(s, observed, lim)
	}
}

func implies(a, b bool) bool { return !a || b }

func (m *moment) in(phases ...Phase) bool { return slices.Contains(phases, m.State.Phase) }

// is tells in which condition the mover counts to be: it may be lost, whatever its pod says.
func (m *moment) is(conditions ...objects.Condition) bool {
	condition := m.Seen.Exposure.Condition
	if m.nodeLost() || m.unconfirmed() {
		condition = objects.Lost
	}
	return slices.Contains(conditions, condition)
}

// nodeLost tells whether the mover has reported no end, and never will.
func (m *moment) nodeLost() bool {
	working := []objects.Condition{objects.Pending, objects.Running, objects.Unrunnable, objects.Terminating}
	return m.Seen.NodeLost && slices.Contains(working, m.Seen.Exposure.Condition)
}

// unconfirmed tells whether the node of a mover that was at work takes too long to say that it has ended.
func (m *moment) unconfirmed() bool {
	return m.in(Prepared, InProgress, Canceling) && m.Seen.Exposure.Condition == objects.Terminating && !m.Seen.NodeLost && m.left(m.Seen.DeletingAt, m.Limits.TerminationGrace) <= 0
}

// stranded tells whether the volume of a pod is on a node that is lost with its mover.
func (m *moment) stranded() bool { return m.State.NodeBound && m.nodeLost() }

// unmarked tells whether an agent of Velero has accepted what is this agent's now.
func (m *moment) unmarked() bool {
	return m.in(Accepted) && m.mine() && !m.State.NodeBound && m.State.Exposer == ""
}

// lostBy is what is said of a mover that was lost.
func (m *moment) lostBy() string {
	switch {
	case m.nodeLost():
		return "node " + m.Seen.Exposure.Node + " is not Ready or does not exist, so its mover counts as lost"
	case m.unconfirmed():
		return "mover pod is being deleted and node " + m.Seen.Exposure.Node + " has not confirmed its end within 1m0s"
	case m.is(objects.Absent):
		return "mover pod vanished"
	case m.stalled():
		return "mover stalled: no byte moved and no Event sent for 2h0m0s"
	}
	return m.Seen.Exposure.Message
}

// writes tells whether the step writes one of these phases.
func (m *moment) writes(phases ...Phase) bool {
	return m.Step.Action == Write && slices.Contains(phases, m.Step.State.Phase)
}

// changes tells whether the step writes exactly the state with this change.
func (m *moment) changes(change func(*State)) bool {
	want := m.State
	change(&want)
	return m.Step.Action == Write && m.Step.State == want
}

// fails tells whether the step ends the transfer as Failed, for that reason and with that message.
func (m *moment) fails(reason Reason, message string) bool {
	return m.writes(Failed) && m.Step.Reason == reason && contains(m.Step.State.Message, message)
}

// waits tells whether the step is nothing but a timer.
func (m *moment) waits(after time.Duration) bool { return m.Step == Step{After: after} }

func (m *moment) fresh() bool { return m.in("", New) }

// asked tells whether the transfer is to stop.
func (m *moment) asked() bool { return m.State.Cancel || m.State.Deleting }

func (m *moment) mine() bool { return m.Seen.Exposes && !m.State.Foreign }

// acts tells whether this agent is the one that acts in this phase.
func (m *moment) acts() bool {
	switch m.State.Phase {
	case Prepared, InProgress, Canceling:
		return m.Seen.OwnsMover
	case "", New, Accepted, Completed, Failed, Canceled:
		return (m.Seen.Exposes || m.Seen.OwnsMover) && !m.State.Foreign
	}
	return false
}

// adopts tells whether this agent has nothing to do with the transfer but to say that its mover runs.
func (m *moment) adopts() bool {
	return m.in(Accepted) && m.Seen.MayMarkPrepared && !m.Seen.Exposes && !m.Seen.OwnsMover
}

// moved tells whether only the delivery is left.
func (m *moment) moved() bool {
	return m.in(InProgress, Canceling) && !m.State.MoverSucceededAt.IsZero()
}

// works tells whether a mover may still work, or be told to stop.
func (m *moment) works() bool { return m.in(InProgress, Canceling) && !m.moved() && !m.replaces() }

// replaces tells whether a mover was given up, and its pod goes before the phase goes back.
func (m *moment) replaces() bool { return m.in(Prepared, InProgress) && m.State.Restarting }

// stale tells whether the mover that is seen was given up before.
func (m *moment) stale() bool {
	return !m.is(objects.Absent) && m.Seen.Exposure.Attempt < m.State.Restarts
}

// gone tells whether the mover has stopped and something took it away.
func (m *moment) gone() bool { return m.is(objects.Absent, objects.Lost) }

// alive tells whether a mover is there that may work and is not being deleted.
func (m *moment) alive() bool { return m.is(objects.Pending, objects.Running, objects.Unrunnable) }

// stallsIn is what is left until a mover that works counts as stalled; it may be over. None is that it never does.
func (m *moment) stallsIn() (left time.Duration, ever bool) {
	if !m.in(InProgress) || !m.works() || !m.is(objects.Running) || m.nodeLost() || m.Limits.StallTimeout == 0 {
		return 0, false
	}
	return m.left(m.Seen.ActiveAt, m.Limits.StallTimeout), true
}

// stalled tells whether a mover that nobody has told to stop has reported nothing for too long.
func (m *moment) stalled() bool {
	left, ever := m.stallsIn()
	return ever && left <= 0 && m.acts() && !m.asked()
}

// preparing tells whether nothing ends the preparation but the mover: neither a cancel, nor the loss of
// the source, nor the prepare timeout.
func (m *moment) preparing() bool {
	return m.in(Accepted) && !m.asked() && m.sourceWaits() && m.left(m.State.AcceptedAt, m.Limits.PrepareTimeout) > 0 &&
		!m.stranded() && !m.unmarked()
}

// ready tells the same of a transfer that waits for its slot.
func (m *moment) ready() bool {
	return m.in(Prepared) && !m.asked() && m.sourceWaits() && !m.replaces()
}

// sourceWaits tells whether the pod whose volume it is exists, and a mover may have the volume.
func (m *moment) sourceWaits() bool { return !m.Seen.SourceGone && m.Seen.PodResumed == "" }

// ends tells whether the step writes a terminal phase.
func (m *moment) ends() bool {
	return !m.in(Completed, Failed, Canceled) && m.writes(Completed, Failed, Canceled)
}

// restarts tells whether the step gives a mover up for another one.
func (m *moment) restarts() bool {
	return m.Step.Action == Write && m.Step.State.Restarts > m.State.Restarts
}

// left is what remains of a bound.
func (m *moment) left(since time.Time, bound time.Duration) time.Duration {
	return since.Add(bound).Sub(m.Seen.Now)
}
