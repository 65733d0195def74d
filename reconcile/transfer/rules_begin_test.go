package transfer

import (
	"slices"

	"github.com/lateen-project/lateen/exposer/objects"
)

func ownershipRules() []rule {
	follow := legal()
	return []rule{{
		"nobody acts without owning",
		func(m *moment) bool { return m.Seen.Exposes || m.Seen.OwnsMover || m.adopts() || m.waits(0) },
		input(func(_ *State, observed *Observed, _ *Limits) { observed.OwnsMover = true }),
	}, {
		"who is merely near says that the mover runs, and nothing else",
		func(m *moment) bool { return implies(m.adopts(), m.waits(0) || m.writes(Prepared)) },
		input(func(_ *State, observed *Observed, _ *Limits) {
			observed.OwnsMover = observed.OwnsMover || observed.MayMarkPrepared
		}),
	}, {
		"what is for another data mover is left alone",
		func(m *moment) bool { return implies(m.State.Foreign, m.waits(0)) },
		input(func(s *State, _ *Observed, _ *Limits) { s.Foreign = false }),
	}, {
		"until a mover is prepared, only who accepts makes, removes and replaces it",
		func(m *moment) bool {
			return m.mine() || implies(m.fresh(), !m.writes(Accepted)) &&
				implies(m.in(Accepted), m.Step.Action != Expose && !m.removes() && !m.restarts())
		},
		input(func(_ *State, observed *Observed, _ *Limits) {
			observed.Exposes = observed.Exposes || observed.OwnsMover
		}),
	}, {
		"once a mover is prepared, only who follows it acts",
		func(m *moment) bool { return m.Seen.OwnsMover || !m.in(Prepared, InProgress, Canceling) || m.waits(0) },
		input(func(_ *State, observed *Observed, _ *Limits) {
			observed.OwnsMover = observed.Exposes || observed.OwnsMover
		}),
	}, {
		"what an agent of Velero accepted is marked before anything is made for it, and nothing else ever is",
		func(m *moment) bool {
			takes := m.unmarked() && !m.asked() && m.sourceWaits() && m.left(m.State.AcceptedAt, m.Limits.PrepareTimeout) > 0
			return (m.Step.Reason == ReasonTakenOver) == takes && implies(takes, m.changes(func(s *State) { s.Exposer = here }))
		},
		input(func(s *State, _ *Observed, _ *Limits) { s.Exposer = "n0" }),
	}, {
		"a phase of a newer Velero is left alone",
		func(m *moment) bool { return implies(m.in(newer()), m.waits(0)) },
		func(s State, observed Observed, lim Limits) Step {
			if s.Phase == newer() {
				s.Phase = InProgress
			}
			return Next(s, observed, lim)
		},
	}, {
		"phases follow each other as the table says",
		func(m *moment) bool {
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
		"":         {Accepted, Failed, Canceled},
		New:        {Accepted, Failed, Canceled},
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
		"what may be prepared is accepted, however long it queued, and nothing else is",
		func(m *moment) bool {
			may := m.fresh() && m.acts() && m.mine() && !m.asked() && m.State.UnsupportedReason == "" && m.Seen.Eligible && m.Seen.Admitted
			return implies(m.fresh(), m.writes(Accepted) == may)
		},
		input(func(_ *State, observed *Observed, _ *Limits) { observed.Admitted = true }),
	}, {
		"accepting is one write: phase, time, by whom and finalizer; a local transfer has its node from then",
		func(m *moment) bool {
			return implies(m.fresh() && m.writes(Accepted), m.changes(func(s *State) {
				s.Phase, s.AcceptedAt, s.Acceptor, s.Exposer, s.Finalizer = Accepted, m.Seen.Now, here, here, true
				if s.NodeBound {
					s.Node = here
				}
			}))
		},
		output(func(step *Step, s State, _ Observed) { step.State.Finalizer = s.Finalizer }),
	}, {
		"accepting and exposing are two steps",
		func(m *moment) bool { return implies(m.Step.Action == Expose, m.in(Accepted)) },
		output(func(step *Step, s State, _ Observed) {
			if (s.Phase == "" || s.Phase == New) && step.State.Phase == Accepted {
				*step = Step{Action: Expose}
			}
		}),
	}, {
		"what waits for something else than room and its pod fails once the prepare timeout is over, and says so",
		func(m *moment) bool {
			if !m.fresh() || !m.acts() || m.asked() || m.State.UnsupportedReason != "" || m.Seen.Eligible {
				return true
			}
			if m.Seen.SourceGone {
				return m.fails(ReasonSourceGone, "does not exist")
			}
			if m.Seen.Unbounded {
				return m.waits(m.Limits.PrepareTimeout)
			}
			if left := m.left(m.Seen.WaitsSince, m.Limits.PrepareTimeout); left > 0 {
				return m.waits(left)
			}
			return m.fails(ReasonNotEligible, m.Limits.PrepareTimeout.String()) && contains(m.Step.State.Message, m.Seen.WaitingFor)
		},
		// The age of the resource does not count as waiting time.
		input(func(s *State, observed *Observed, _ *Limits) { observed.WaitsSince = s.CreatedAt }),
	}, {
		"what queues for room waits without an end",
		func(m *moment) bool {
			queues := m.fresh() && m.acts() && !m.asked() && m.State.UnsupportedReason == "" && m.Seen.Eligible && !m.Seen.Admitted
			return implies(queues, m.waits(0))
		},
		input(func(_ *State, observed *Observed, _ *Limits) {
			observed.Eligible = observed.Eligible && observed.Admitted
		}),
	}, {
		"what is not supported fails at once and says what it is",
		func(m *moment) bool {
			refused := m.fresh() && m.acts() && !m.asked() && m.State.UnsupportedReason != ""
			return implies(refused, m.fails(ReasonUnsupported, m.State.UnsupportedReason))
		},
		input(func(s *State, observed *Observed, _ *Limits) {
			if !observed.Admitted {
				s.UnsupportedReason = ""
			}
		}),
	}, {
		"Prepared is written by who follows the node on which the mover runs, slot or not, and for nothing else",
		func(m *moment) bool {
			runs := m.preparing() && (m.acts() || m.adopts()) && !m.stale() && m.is(objects.Running) && m.Seen.MayMarkPrepared
			return (m.writes(Prepared) && !m.restarts()) == runs &&
				implies(runs, m.changes(func(s *State) {
					s.Phase, s.Node = Prepared, m.Seen.Exposure.Node
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
		"a prepared mover starts once it has a slot, and never without",
		func(m *moment) bool {
			waits := m.ready() && m.acts() && m.is(objects.Running)
			starts := m.writes(InProgress) && !m.in(InProgress)
			return starts == (waits && m.Seen.HasSlot) && implies(waits && !m.Seen.HasSlot, m.waits(m.Seen.SlotIn)) &&
				implies(starts, m.changes(func(s *State) { s.Phase, s.StartedAt, s.NodeOS = InProgress, m.Seen.Now, m.Seen.Exposure.OS }))
		},
		input(func(_ *State, observed *Observed, _ *Limits) { observed.HasSlot = true }),
	}}
}

func cleaningRules() []rule {
	return []rule{{
		"a terminal phase never changes",
		func(m *moment) bool {
			return implies(m.in(Completed, Failed, Canceled) && m.Step.Action == Write, m.writes(m.State.Phase))
		},
		output(func(step *Step, s State, observed Observed) {
			if s.Phase == Failed && observed.Exposure.Condition == objects.Absent && step.Action == Write {
				step.State.Phase = Canceled
			}
		}),
	}, {
		"the terminal phase is written before a mover is removed: only useless ones go earlier",
		func(m *moment) bool {
			useless := m.in(Canceling) && m.alive() || m.in(Accepted) && m.stale() || m.discards() || m.replaces()
			return implies(m.Step.Action == CleanUp, m.in(Completed, Failed, Canceled)) && implies(m.Step.Action == DeleteMover, useless)
		},
		output(func(step *Step, _ State, _ Observed) {
			if step.State.Phase == Completed && step.Reason == ReasonCompleted {
				*step = Step{Action: CleanUp}
			}
		}),
	}, {
		"what was exposed is removed once the transfer has ended",
		func(m *moment) bool {
			left := m.in(Completed, Failed, Canceled) && m.acts() && (!m.is(objects.Absent, objects.Terminating) || m.Seen.HasLeftovers)
			return implies(left, m.Step.Action == CleanUp)
		},
		input(func(s *State, observed *Observed, _ *Limits) {
			if s.Phase.Terminal() && observed.Exposure.Condition == objects.Unrunnable {
				observed.Exposure.Condition = objects.Absent
			}
		}),
	}, {
		"a mover whose end nobody confirms is looked at again when it is time to warn of it, and waited for without an end",
		func(m *moment) bool {
			waits := m.in(Completed, Failed, Canceled) && m.acts() && m.is(objects.Terminating) && !m.Seen.HasLeftovers
			return implies(waits, m.waits(max(m.left(m.Seen.DeletingAt, m.Limits.CleanUpWarning), 0)))
		},
		input(func(_ *State, observed *Observed, _ *Limits) { observed.DeletingAt = observed.Now }),
	}, {
		"the finalizer goes last, alone but for the mark of who took part, once nothing is exposed",
		func(m *moment) bool {
			goes := m.in(Completed, Failed, Canceled) && m.acts() && m.is(objects.Absent) && !m.Seen.HasLeftovers && m.State.HasLeftovers()
			drops := m.Step.Action == Write && m.State.HasLeftovers() && !m.Step.State.HasLeftovers()
			return goes == drops && implies(goes, m.changes(func(s *State) { s.Finalizer, s.Exposer = false, "" }))
		},
		output(func(step *Step, s State, _ Observed) {
			if step.State.Phase.Terminal() && !s.Phase.Terminal() {
				step.State.Finalizer = false
			}
		}),
	}, {
		"what is clean is left alone",
		func(m *moment) bool {
			clean := m.in(Completed, Failed, Canceled) && m.is(objects.Absent) && !m.Seen.HasLeftovers && m.State.Settled()
			return implies(clean, m.waits(0))
		},
		output(func(step *Step, s State, observed Observed) {
			if s.Phase.Terminal() && observed.Exposes && *step == (Step{}) {
				*step = Step{Action: CleanUp}
			}
		}),
	}, {
		"whatever ends and names a snapshot is kept until that is gone too",
		func(m *moment) bool {
			return implies(m.ends() && m.State.OwnsSnapshot && !m.State.Deleting, m.Step.State.Finalizer)
		},
		input(func(s *State, _ *Observed, _ *Limits) { s.OwnsSnapshot = false }),
	}, {
		"no finalizer is added to an object that is being deleted",
		func(m *moment) bool {
			return implies(m.Step.Action == Write && m.State.Deleting && !m.State.Finalizer, !m.Step.State.Finalizer)
		},
		output(func(step *Step, _ State, _ Observed) {
			if step.Action == Write && !step.State.Phase.Terminal() {
				step.State.Finalizer = true
			}
		}),
	}}
}
