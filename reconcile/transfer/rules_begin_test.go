package transfer

import (
	"slices"

	"github.com/lateen-project/lateen/exposer/objects"
)

func ownershipRules() []rule {
	follow := legal()
	return []rule{{
		"an agent acts only on transfers that it owns",
		func(m *situation) bool { return m.Observed.Exposes || m.Observed.OwnsMover || m.adopts() || m.waits(0) },
		input(func(_ *State, observed *Observed, _ *Limits) { observed.OwnsMover = true }),
	}, {
		"an agent that may only mark Prepared writes that the mover runs, and nothing else",
		func(m *situation) bool { return implies(m.adopts(), m.waits(0) || m.writes(Prepared)) },
		input(func(_ *State, observed *Observed, _ *Limits) {
			observed.OwnsMover = observed.OwnsMover || observed.MayMarkPrepared
		}),
	}, {
		"a transfer of another data mover is not changed",
		func(m *situation) bool { return implies(m.State.Foreign, m.waits(0)) },
		input(func(s *State, _ *Observed, _ *Limits) { s.Foreign = false }),
	}, {
		"before Prepared, only the exposing agent creates, deletes and replaces the mover",
		func(m *situation) bool {
			return m.exposes() || implies(m.isNew(), !m.writes(Accepted)) &&
				implies(m.in(Accepted), m.Step.Action != Expose && !m.removes() && !m.restarts())
		},
		input(func(_ *State, observed *Observed, _ *Limits) {
			observed.Exposes = observed.Exposes || observed.OwnsMover
		}),
	}, {
		"from Prepared on, only the agent that owns the mover acts",
		func(m *situation) bool {
			return m.Observed.OwnsMover || !m.in(Prepared, InProgress, Canceling) || m.waits(0)
		},
		input(func(_ *State, observed *Observed, _ *Limits) {
			observed.OwnsMover = observed.Exposes || observed.OwnsMover
		}),
	}, {
		"a transfer that an agent of Velero accepted is marked before anything is created for it, and no other transfer is marked",
		func(m *situation) bool {
			takes := m.unmarked() && !m.stopRequested() && m.sourceWaits() && !m.late()
			return (m.Step.Reason == ReasonTakenOver) == takes && implies(takes, m.changes(func(s *State) { s.Exposer = here }))
		},
		input(func(s *State, _ *Observed, _ *Limits) { s.Exposer = "n0" }),
	}, {
		"a transfer in an unknown phase is not changed",
		func(m *situation) bool { return implies(m.in(unknownPhase()), m.waits(0)) },
		func(s State, observed Observed, lim Limits) Step {
			if s.Phase == unknownPhase() {
				s.Phase = InProgress
			}
			return Next(s, observed, lim)
		},
	}, {
		"phases follow the table of transitions",
		func(m *situation) bool {
			return m.Step.Action != Write || slices.Contains(follow[m.State.Phase], m.Step.State.Phase)
		},
		output(func(step *Step, s State, _ Observed) {
			if s.Phase == InProgress && step.State.Phase == Accepted {
				step.State.Phase = Prepared
			}
		}),
	}}
}

// legal returns the phases that may be written in each phase.
func legal() map[Phase][]Phase {
	return map[Phase][]Phase{
		"":         {New, Accepted, Failed, Canceled},
		New:        {New, Accepted, Failed, Canceled},
		Accepted:   {Accepted, Prepared, Failed, Canceled},
		Prepared:   {Accepted, Prepared, InProgress, Failed, Canceled},
		InProgress: {Accepted, InProgress, Canceling, Completed, Failed, Canceled},
		Canceling:  {Canceling, Completed, Failed, Canceled},
		Completed:  {Completed},
		Failed:     {Failed},
		Canceled:   {Canceled},
	}
}

func beginningRules() []rule {
	return []rule{{
		"a transfer that is eligible and admitted is accepted, however long it queued, and no other is",
		func(m *situation) bool {
			may := m.isNew() && m.acts() && m.exposes() && !m.stopRequested() && m.State.UnsupportedReason == "" && m.Observed.Eligible && m.Observed.Admitted
			return implies(m.isNew(), m.writes(Accepted) == may)
		},
		input(func(_ *State, observed *Observed, _ *Limits) { observed.Admitted = true }),
	}, {
		"accepting is one write: phase, time, agent and finalizer; a node-bound transfer also gets its node",
		func(m *situation) bool {
			return implies(m.isNew() && m.writes(Accepted), m.changes(func(s *State) {
				s.Phase, s.AcceptedAt, s.Acceptor, s.Exposer, s.Finalizer = Accepted, m.Observed.Now, here, here, true
				if s.NodeBound {
					s.Node = here
				}
			}))
		},
		output(func(step *Step, s State, _ Observed) { step.State.Finalizer = s.Finalizer }),
	}, {
		"accepting and exposing are two steps",
		func(m *situation) bool { return implies(m.Step.Action == Expose, m.in(Accepted)) },
		output(func(step *Step, s State, _ Observed) {
			if s.Phase == New && step.State.Phase == Accepted {
				*step = Step{Action: Expose}
			}
		}),
	}, {
		"a transfer that waits neither for admission nor for its pod fails at the prepare timeout, with the reason",
		func(m *situation) bool {
			if !m.isNew() || !m.acts() || m.stopRequested() || m.State.UnsupportedReason != "" || m.Observed.Eligible {
				return true
			}
			if m.Observed.SourceGone {
				return m.fails(ReasonSourceGone, "does not exist")
			}
			if m.Observed.Unbounded {
				return m.waits(m.Limits.PrepareTimeout)
			}
			if left := m.left(m.Observed.WaitsSince, m.Limits.PrepareTimeout); left > 0 {
				return m.waits(left)
			}
			return m.fails(ReasonNotEligible, m.Limits.PrepareTimeout.String()) && contains(m.Step.State.Message, m.Observed.WaitingFor)
		},
		// The age of the resource does not count as waiting time.
		input(func(s *State, observed *Observed, _ *Limits) { observed.WaitsSince = s.CreatedAt }),
	}, {
		"waiting for admission has no timeout, and a snapshot gets the finalizer of its upload first",
		func(m *situation) bool {
			queues := m.isNew() && m.acts() && !m.stopRequested() && m.State.UnsupportedReason == "" && m.Observed.Eligible && !m.Observed.Admitted
			lacks := queues && m.exposes() && m.State.OwnsSnapshot && !m.State.Finalizer
			return implies(queues && !lacks, m.waits(0)) && implies(lacks, m.changes(func(s *State) { s.Finalizer = true })) && implies(m.isNew() && m.writes(New), lacks)
		},
		input(func(_ *State, observed *Observed, _ *Limits) {
			observed.Eligible = observed.Eligible && observed.Admitted
		}),
	}, {
		"an unsupported transfer fails at once, with the reason",
		func(m *situation) bool {
			refused := m.isNew() && m.acts() && !m.stopRequested() && m.State.UnsupportedReason != ""
			return implies(refused, m.fails(ReasonUnsupported, m.State.UnsupportedReason))
		},
		input(func(s *State, observed *Observed, _ *Limits) {
			if !observed.Admitted {
				s.UnsupportedReason = ""
			}
		}),
	}, {
		"Prepared is written by the agent of the mover's node once the mover runs, with or without a slot",
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
		output(func(step *Step, _ State, observed Observed) {
			if step.State.Phase == Prepared && observed.HasSlot {
				step.State.Phase = InProgress
			}
		}),
	}, {
		"a prepared mover starts once it has a slot, and never without one",
		func(m *situation) bool {
			waits := m.ready() && m.acts() && m.is(objects.Running)
			starts := m.writes(InProgress) && !m.in(InProgress)
			return starts == (waits && m.Observed.HasSlot) && implies(waits && !m.Observed.HasSlot, m.waits(m.Observed.SlotIn)) &&
				implies(starts, m.changes(func(s *State) { s.Phase, s.StartedAt, s.NodeOS = InProgress, m.Observed.Now, m.Observed.Exposure.OS }))
		},
		input(func(_ *State, observed *Observed, _ *Limits) { observed.HasSlot = true }),
	}}
}

func cleaningRules() []rule {
	return []rule{{
		"a terminal phase never changes",
		func(m *situation) bool {
			return implies(m.in(Completed, Failed, Canceled) && m.Step.Action == Write, m.writes(m.State.Phase))
		},
		output(func(step *Step, s State, observed Observed) {
			if s.Phase == Failed && observed.Exposure.Condition == objects.Absent && step.Action == Write {
				step.State.Phase = Canceled
			}
		}),
	}, {
		"the terminal phase is written before the mover is deleted; only lost and failed movers are deleted earlier",
		func(m *situation) bool {
			useless := m.in(Canceling) && m.alive() || m.in(Accepted) && m.stale() || m.discards() || m.replaces()
			return implies(m.Step.Action == CleanUp, m.in(Completed, Failed, Canceled)) && implies(m.Step.Action == DeleteMover, useless)
		},
		output(func(step *Step, _ State, _ Observed) {
			if step.State.Phase == Completed && step.Reason == ReasonCompleted {
				*step = Step{Action: CleanUp}
			}
		}),
	}, {
		"the exposed objects are deleted once the transfer is terminal",
		func(m *situation) bool {
			left := m.in(Completed, Failed, Canceled) && m.acts() && (!m.is(objects.Absent, objects.Terminating) || m.Observed.HasLeftovers)
			return implies(left, m.Step.Action == CleanUp)
		},
		input(func(s *State, observed *Observed, _ *Limits) {
			if s.Phase.Terminal() && observed.Exposure.Condition == objects.Unrunnable {
				observed.Exposure.Condition = objects.Absent
			}
		}),
	}, {
		"a deleting mover whose end is not confirmed is observed again at the time of the warning, and awaited without a timeout",
		func(m *situation) bool {
			waits := m.in(Completed, Failed, Canceled) && m.acts() && m.is(objects.Terminating) && !m.Observed.HasLeftovers
			return implies(waits, m.waits(max(m.left(m.Observed.DeletingAt, m.Limits.CleanUpWarning), 0)))
		},
		input(func(_ *State, observed *Observed, _ *Limits) { observed.DeletingAt = observed.Now }),
	}, {
		"the finalizer is removed last, together with the marks of the agents only, once nothing is exposed",
		func(m *situation) bool {
			goes := m.in(Completed, Failed, Canceled) && m.acts() && m.is(objects.Absent) && !m.Observed.HasLeftovers && m.State.HasLeftovers()
			drops := m.Step.Action == Write && m.State.HasLeftovers() && !m.Step.State.HasLeftovers()
			return goes == drops && implies(goes, m.changes(func(s *State) { s.Finalizer, s.Exposer = false, "" }))
		},
		output(func(step *Step, s State, _ Observed) {
			if step.State.Phase.Terminal() && !s.Phase.Terminal() {
				step.State.Finalizer = false
			}
		}),
	}, {
		"a terminal transfer without leftovers is not changed",
		func(m *situation) bool {
			clean := m.in(Completed, Failed, Canceled) && m.is(objects.Absent) && !m.Observed.HasLeftovers && m.State.Settled()
			return implies(clean, m.waits(0))
		},
		output(func(step *Step, s State, observed Observed) {
			if s.Phase.Terminal() && observed.Exposes && *step == (Step{}) {
				*step = Step{Action: CleanUp}
			}
		}),
	}, {
		"a terminal transfer that owns a snapshot keeps its finalizer until the snapshot is deleted",
		func(m *situation) bool {
			return implies(m.ends() && m.State.OwnsSnapshot && !m.State.Deleting, m.Step.State.Finalizer)
		},
		input(func(s *State, _ *Observed, _ *Limits) { s.OwnsSnapshot = false }),
	}, {
		"no finalizer is added to a deleting object",
		func(m *situation) bool {
			return implies(m.Step.Action == Write && m.State.Deleting && !m.State.Finalizer, !m.Step.State.Finalizer)
		},
		output(func(step *Step, _ State, _ Observed) {
			if step.Action == Write && !step.State.Phase.Terminal() {
				step.State.Finalizer = true
			}
		}),
	}}
}
