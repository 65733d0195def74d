package transfer

import (
	"github.com/lateen-project/lateen/exposer/objects"
)

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
		"before Prepared, only the exposing agent creates, deletes and replaces the mover",
		func(m *situation) bool {
			return m.exposes() || implies(m.isNew(), !m.writes(Accepted)) &&
				implies(m.in(Accepted), m.Step.Action != Expose && !m.removes() && !m.restarts())
		},
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
		"accepting is one write: phase, time, agent and finalizer; a node-bound transfer also gets its node",
		func(m *situation) bool {
			return implies(m.isNew() && m.writes(Accepted), m.changes(func(s *State) {
				s.Phase, s.AcceptedAt, s.Acceptor, s.Exposer, s.Finalizer = Accepted, m.Observed.Now, here, here, true
				if s.NodeBound {
					s.Node = here
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
		"an unsupported transfer fails at once, with the reason",
		func(m *situation) bool {
			refused := m.isNew() && m.acts() && !m.stopRequested() && m.State.UnsupportedReason != ""
			return implies(refused, m.fails(ReasonUnsupported, m.State.UnsupportedReason))
		},
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
