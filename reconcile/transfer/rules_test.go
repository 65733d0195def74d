package transfer

import (
	"slices"
	"strings"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// rule is an invariant of every step, stated without Next.
type rule struct {
	name  string
	holds func(*situation) bool
}

func implies(a, b bool) bool { return !a || b }

func (s *situation) in(phases ...Phase) bool { return slices.Contains(phases, s.State.Phase) }

// is reports whether the mover counts as being in one of the conditions. It may count as lost, whatever its pod status says.
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

// unconfirmed reports whether a mover that is deleting, or was given up, exceeds the grace period without an end.
func (s *situation) unconfirmed() bool {
	deletes := slices.Contains([]objects.Condition{objects.Running, objects.Terminating}, s.Observed.Exposure.Condition)
	return s.in(Prepared, InProgress, Canceling) && deletes && !s.Observed.NodeLost && s.graceOver()
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

// preparing reports whether only the mover can end the preparation: no cancel, no lost source and no prepare timeout does.
func (s *situation) preparing() bool {
	return s.in(Accepted) && !s.stopRequested() && s.sourceWaits() && !s.late() && !s.stranded() && !s.unmarked()
}

// late reports whether the prepare timeout has passed, and this agent has no mover that it may mark as prepared.
func (s *situation) late() bool {
	runs := s.acts() && s.is(objects.Running) && !s.stale() && s.Observed.MayMarkPrepared
	return s.left(s.State.AcceptedAt, s.Limits.PrepareTimeout) <= 0 && !runs
}

// ready is the counterpart of preparing for a transfer that waits for its slot.
func (s *situation) ready() bool { return s.in(Prepared) && !s.stopRequested() && s.sourceWaits() }

// sourceWaits reports whether the pod of the volume exists and a mover may write to the volume.
func (s *situation) sourceWaits() bool { return !s.Observed.SourceGone && s.Observed.PodResumed == "" }

// ends reports whether the step writes a terminal phase.
func (s *situation) ends() bool {
	return !s.in(Completed, Failed, Canceled) && s.writes(Completed, Failed, Canceled)
}

// restarts reports whether the step replaces a mover.
func (s *situation) restarts() bool {
	return s.Step.Action == Write && s.Step.State.Restarts > s.State.Restarts
}

// left returns the time left of a bound.
func (s *situation) left(since time.Time, bound time.Duration) time.Duration {
	return since.Add(bound).Sub(s.Observed.Now)
}

func ownershipRules() []rule {
	return []rule{{
		"an agent acts only on transfers that it owns",
		func(m *situation) bool { return m.Observed.Exposes || m.Observed.OwnsMover || m.adopts() || m.waits(0) },
	}, {
		"an agent that may only mark Prepared writes that the mover runs, and nothing else",
		func(m *situation) bool { return implies(m.adopts(), m.waits(0) || m.writes(Prepared)) },
	}, {
		"a transfer of another data mover is not changed",
		func(m *situation) bool { return implies(m.State.Foreign, m.waits(0)) },
	}, {
		"from Prepared on, only the agent that owns the mover acts",
		func(m *situation) bool {
			return m.Observed.OwnsMover || !m.in(Prepared, InProgress, Canceling) || m.waits(0)
		},
	}, {
		"a transfer that an agent of Velero accepted is marked before anything is created for it, and no other transfer is marked",
		func(m *situation) bool {
			takes := m.unmarked() && !m.stopRequested() && m.sourceWaits() && !m.late()
			return (m.Step.Reason == ReasonTakenOver) == takes && implies(takes, m.changes(func(s *State) { s.Exposer = here }))
		},
	}, {
		"a transfer in an unknown phase is not changed",
		func(m *situation) bool { return implies(m.in(unknownPhase()), m.waits(0)) },
	}}
}

func beginningRules() []rule {
	return []rule{{
		"a transfer that is eligible and admitted is accepted, however long it queued, and no other is",
		func(m *situation) bool {
			may := m.isNew() && m.acts() && m.exposes() && !m.stopRequested() && m.State.UnsupportedReason == "" && m.Observed.Eligible && m.Observed.Admitted
			return implies(m.isNew(), m.writes(Accepted) == may)
		},
	}, {
		"accepting is one write: phase, time, agent and finalizer; a node-bound transfer also gets its node, whose agent exposes it",
		func(m *situation) bool {
			return implies(m.isNew() && m.writes(Accepted), m.changes(func(s *State) {
				s.Phase, s.AcceptedAt, s.Acceptor, s.Exposer, s.Finalizer = Accepted, m.Observed.Now, here, here, true
				if s.NodeBound {
					s.Node, s.Exposer = "home", "home"
				}
			}))
		},
	}, {
		"a transfer that waits neither for admission nor for its pod fails at the prepare timeout, with the reason",
		func(m *situation) bool {
			if !m.isNew() || !m.acts() || m.stopRequested() || m.State.UnsupportedReason != "" || m.Observed.Eligible {
				return true
			}
			if m.Observed.SourceGone {
				return m.fails(ReasonSourceGone, "does not exist")
			}
			if m.Observed.PodResumed != "" {
				return m.fails(ReasonUnconfirmed, m.Observed.PodResumed)
			}
			if m.Observed.Unbounded {
				return m.waits(m.Limits.PrepareTimeout)
			}
			if left := m.left(m.Observed.WaitsSince, m.Limits.PrepareTimeout); left > 0 {
				return m.waits(left)
			}
			return m.fails(ReasonNotEligible, m.Limits.PrepareTimeout.String()) && contains(m.Step.State.Message, m.Observed.WaitingFor)
		},
	}, {
		"waiting for admission has no timeout, and a snapshot gets the finalizer of its upload first",
		func(m *situation) bool {
			queues := m.isNew() && m.acts() && !m.stopRequested() && m.State.UnsupportedReason == "" && m.Observed.Eligible && !m.Observed.Admitted
			lacks := queues && m.exposes() && m.State.OwnsSnapshot && !m.State.Finalizer
			return implies(queues && !lacks, m.waits(0)) && implies(lacks, m.changes(func(s *State) { s.Finalizer = true })) && implies(m.isNew() && m.writes(New), lacks)
		},
	}, {
		"an unsupported transfer fails once its node is known, with the reason",
		func(m *situation) bool {
			refused := m.isNew() && m.acts() && !m.stopRequested() && m.State.UnsupportedReason != "" && (m.Observed.Home != "" || m.Observed.WaitingFor == "")
			return implies(refused, m.fails(ReasonUnsupported, m.State.UnsupportedReason))
		},
	}, {
		"Prepared is written by the agent that may once the mover runs, with or without a slot",
		func(m *situation) bool {
			runs := m.preparing() && (m.acts() || m.adopts()) && !m.stale() && m.is(objects.Running) && m.Observed.MayMarkPrepared
			return (m.writes(Prepared) && !m.restarts()) == runs &&
				implies(runs, m.changes(func(s *State) {
					s.Phase, s.Node = Prepared, m.Observed.Exposure.Node
					if s.Exposer == "" {
						s.Exposer = here
					}
				}))
		},
	}, {
		"a prepared mover starts once it has a slot, and never without one",
		func(m *situation) bool {
			waits := m.ready() && m.acts() && m.is(objects.Running)
			starts := m.writes(InProgress) && !m.in(InProgress)
			return starts == (waits && m.Observed.HasSlot) && implies(waits && !m.Observed.HasSlot, m.waits(m.Observed.SlotIn)) &&
				implies(starts, m.changes(func(s *State) { s.Phase, s.StartedAt, s.NodeOS = InProgress, m.Observed.Now, m.Observed.Exposure.OS }))
		},
	}}
}

func cleaningRules() []rule {
	return []rule{{
		"a terminal phase never changes",
		func(m *situation) bool {
			return implies(m.in(Completed, Failed, Canceled) && m.Step.Action == Write, m.writes(m.State.Phase))
		},
	}, {
		"the terminal phase is written before the mover is deleted; only lost and failed movers are deleted earlier",
		func(m *situation) bool {
			useless := m.in(Canceling) && m.alive() || m.in(Accepted) && m.stale() || m.discards()
			return implies(m.Step.Action == CleanUp, m.in(Completed, Failed, Canceled)) && implies(m.Step.Action == DeleteMover, useless)
		},
	}, {
		"the exposed objects are deleted once the transfer is terminal",
		func(m *situation) bool {
			left := m.in(Completed, Failed, Canceled) && m.acts() && (!m.is(objects.Absent, objects.Terminating) || m.Observed.HasLeftovers)
			return implies(left, m.Step.Action == CleanUp)
		},
	}, {
		"a deleting mover whose end is not confirmed is observed again at the time of the warning, and awaited without a timeout",
		func(m *situation) bool {
			waits := m.in(Completed, Failed, Canceled) && m.acts() && m.is(objects.Terminating) && !m.Observed.HasLeftovers
			return implies(waits, m.waits(max(m.left(m.Observed.DeletingAt, m.Limits.CleanUpWarning), 0)))
		},
	}, {
		"the finalizer is removed last, together with the marks of the agents only, once nothing is exposed",
		func(m *situation) bool {
			goes := m.in(Completed, Failed, Canceled) && m.acts() && m.is(objects.Absent) && !m.Observed.HasLeftovers && m.State.HasLeftovers()
			drops := m.Step.Action == Write && m.State.HasLeftovers() && !m.Step.State.HasLeftovers()
			return goes == drops && implies(goes, m.changes(func(s *State) { s.Finalizer, s.Exposer = false, "" }))
		},
	}, {
		"a terminal transfer without leftovers is not changed",
		func(m *situation) bool {
			clean := m.in(Completed, Failed, Canceled) && m.is(objects.Absent) && !m.Observed.HasLeftovers && m.State.Settled()
			return implies(clean, m.waits(0))
		},
	}, {
		"a terminal transfer that owns a snapshot keeps its finalizer until the snapshot is deleted",
		func(m *situation) bool {
			return implies(m.ends() && m.State.OwnsSnapshot && !m.State.Deleting, m.Step.State.Finalizer)
		},
	}, {
		"no finalizer is added to a deleting object",
		func(m *situation) bool {
			return implies(m.Step.Action == Write && m.State.Deleting && !m.State.Finalizer, !m.Step.State.Finalizer)
		},
	}}
}

func contains(message, what string) bool { return strings.Contains(message, what) }

func cancelRules() []rule {
	return []rule{{
		"a transfer whose mover has not started is canceled at once",
		func(m *situation) bool {
			return implies(m.stopRequested() && m.acts() && (m.isNew() || m.in(Accepted, Prepared)), m.writes(Canceled))
		},
	}, {
		"deleting a transfer whose mover may work sets spec.cancel and changes nothing else",
		func(m *situation) bool {
			flips := m.in(InProgress) && m.works() && m.acts() && m.State.Deleting && !m.State.Cancel && (m.alive() || m.is(objects.Terminating))
			return implies(flips, m.changes(func(s *State) { s.Cancel = true }))
		},
	}, {
		"spec.cancel is set for a deletion only, and never reset",
		func(m *situation) bool {
			return implies(m.Step.Action == Write && m.Step.State.Cancel != m.State.Cancel, m.in(InProgress) && m.State.Deleting && m.Step.State.Cancel)
		},
	}, {
		"a cancel in phase InProgress is answered with Canceling, which the mover reacts to",
		func(m *situation) bool {
			observed := m.in(InProgress) && m.works() && m.acts() && m.State.Cancel && (m.alive() || m.is(objects.Terminating))
			return (m.writes(Canceling) && !m.in(Canceling)) == observed && implies(observed, m.changes(func(s *State) { s.Phase = Canceling }))
		},
	}, {
		"a mover that has started is given the cancel grace period to stop, and no more; one that has not may miss the cancel, and is given none",
		func(m *situation) bool {
			if !m.in(Canceling) || m.moved() || !m.acts() || !m.alive() {
				return true
			}
			if left := m.left(m.Observed.CanceledAt, m.Limits.CancelGrace); left > 0 && m.Observed.Started {
				return m.waits(left)
			}
			return m.Step.Action == DeleteMover
		},
	}, {
		"a canceled transfer whose mover is absent becomes Canceled and gets no other mover",
		func(m *situation) bool {
			stopped := m.in(Canceling) || m.in(InProgress) && m.stopRequested()
			return implies(stopped && m.works() && m.acts() && m.lostOrAbsent(), m.writes(Canceled))
		},
	}, {
		"a mover that stops because of the cancel makes the transfer Canceled",
		func(m *situation) bool {
			reported := m.in(Canceling) || m.in(InProgress) && m.stopRequested()
			return implies(reported && m.works() && m.acts() && m.is(objects.Failed) && m.Observed.Exposure.Canceled, m.writes(Canceled))
		},
	}, {
		"no transfer becomes Canceled without a cancel or a deletion",
		func(m *situation) bool {
			return implies(m.ends() && m.writes(Canceled), m.stopRequested() || m.in(Canceling))
		},
	}, {
		"a cancel keeps its message, and a deletion gets a message of its own",
		func(m *situation) bool {
			if !m.ends() || !m.writes(Canceled) {
				return true
			}
			if m.State.Message == "" && m.State.Deleting {
				return contains(m.Step.State.Message, "being deleted")
			}
			return m.Step.State.Message == m.State.Message
		},
	}}
}
