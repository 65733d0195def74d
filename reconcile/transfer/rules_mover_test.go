package transfer

import (
	"slices"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

func moverRules() []rule {
	return []rule{{
		"a mover is made when there is none and the pause is over, and looked after until the prepare timeout",
		func(m *moment) bool {
			pause := m.left(m.State.AcceptedAt, pauseBefore(m.State.Restarts, m.Limits))
			paused := m.State.Restarts > 0 && pause > 0
			makes := m.preparing() && m.mine() && m.is(objects.Absent) && !paused
			return (m.Step.Action == Expose) == makes &&
				implies(makes, m.Step == Step{Action: Expose, After: m.left(m.State.AcceptedAt, m.Limits.PrepareTimeout)})
		},
		output(func(step *Step, _ State, observed Observed) {
			if step.Action == Expose && observed.Diagnosis != "" {
				*step = Step{}
			}
		}),
	}, {
		"the pause before another mover is 10 s, and twice as long each time",
		func(m *moment) bool {
			pause := m.left(m.State.AcceptedAt, pauseBefore(m.State.Restarts, m.Limits))
			if !m.preparing() || !m.mine() || !m.is(objects.Absent) || m.State.Restarts == 0 || pause <= 0 {
				return true
			}
			return m.waits(min(pause, m.left(m.State.AcceptedAt, m.Limits.PrepareTimeout)))
		},
		input(func(_ *State, _ *Observed, lim *Limits) { lim.RestartDelay *= 2 }),
	}, {
		"a mover that was given up is removed and never adopted",
		func(m *moment) bool {
			if !m.preparing() || !m.stale() {
				return true
			}
			if m.mine() && !m.is(objects.Terminating) {
				return m.Step.Action == Remove
			}
			return m.Step.Action == Wait
		},
		input(func(s *State, observed *Observed, _ *Limits) { observed.Exposure.Attempt = s.Restarts }),
	}, {
		"a mover that is being deleted still runs: it is neither replaced nor removed again",
		func(m *moment) bool {
			return implies(m.is(objects.Terminating) && !m.Seen.HasLeftovers, m.Step.Action != Expose && m.Step.Action != Remove && !m.restarts())
		},
		input(func(_ *State, observed *Observed, _ *Limits) {
			if observed.Exposure.Condition == objects.Terminating {
				observed.Exposure.Condition = objects.Absent
			}
		}),
	}, {
		"a mover that can never run fails the transfer at once and says why",
		func(m *moment) bool {
			waits := m.preparing() && m.mine() && !m.stale() || m.ready() && m.acts()
			return implies(waits && m.is(objects.Unrunnable), m.fails(ReasonCannotRun, toldWhy))
		},
		input(func(_ *State, observed *Observed, _ *Limits) {
			if observed.Exposure.Condition == objects.Unrunnable {
				observed.Exposure.Condition = objects.Pending
			}
		}),
	}, {
		"a mover that ran and failed fails the transfer, with what the mover said",
		func(m *moment) bool {
			reported := m.Seen.Exposure.Canceled && (m.in(Canceling) || m.in(InProgress) && m.asked())
			worked := m.preparing() && m.mine() && !m.stale() || m.ready() && m.acts() || m.works() && m.acts() && !reported
			return implies(worked && m.is(objects.Failed), m.fails(ReasonMoverFailed, toldWhy))
		},
		output(func(step *Step, _ State, _ Observed) {
			if step.Reason == ReasonMoverFailed {
				step.State.Message = "data path backup failed: "
			}
		}),
	}, {
		"a mover that ended before it was told to start fails the transfer",
		func(m *moment) bool {
			early := m.preparing() && m.mine() && !m.stale() || m.ready() && m.acts()
			return implies(early && m.is(objects.Succeeded), m.fails(ReasonMoverFailed, "before it was told to start"))
		},
		output(func(step *Step, _ State, observed Observed) {
			if observed.Result != nil && step.Reason == ReasonMoverFailed {
				step.State.Phase, step.State.Outcome, step.Reason = Completed, *observed.Result, ReasonCompleted
			}
		}),
	}}
}

// loses reports whether a mover was lost that may have a successor.
func (m *moment) loses() bool {
	lost := m.preparing() && m.mine() && !m.stale() && m.is(objects.Lost) ||
		m.ready() && m.acts() && m.gone() ||
		m.in(InProgress) && m.works() && m.acts() && m.gone() && !m.asked() && m.sourceWaits()
	return lost && !m.stranded()
}

// lacks reports whether a mover is still to be created, replaced or started.
func (m *moment) lacks() bool {
	return m.in(Accepted, Prepared) || m.replaces() || m.in(InProgress) && m.works() && m.gone()
}

// beginAgain is the expected write once the previous mover is deleted.
func beginAgain(s *State) {
	s.Phase, s.StartedAt, s.Progress, s.Restarting = Accepted, time.Time{}, Progress{}, false
	if !s.NodeBound {
		s.Node = ""
	}
}

func restartRules() []rule {
	return []rule{{
		"a mover that was lost is replaced as long as there are tries left",
		func(m *moment) bool {
			stalls := m.stalled() && m.sourceWaits() && m.State.Restarts == 0
			return m.restarts() == (stalls || m.loses() && m.State.Restarts < m.Limits.Retries)
		},
		output(func(step *Step, s State, observed Observed) {
			if step.Reason == ReasonRestarted && observed.Exposure.Condition == objects.Lost {
				*step = failed(s, observed, ReasonMoverLost, observed.Exposure.Message)
			}
		}),
	}, {
		"giving a mover up is one write that counts it and says why, and where no pod is left it begins as if nothing had been moved",
		func(m *moment) bool {
			return implies(m.restarts(), m.changes(func(s *State) {
				s.AcceptedAt, s.Message = m.Seen.Now, m.lostBy()
				s.Restarts++
				if s.Exposer == "" {
					s.Exposer = here
				}
				if s.Restarting = !m.in(Accepted) && !m.is(objects.Absent) && !m.unconfirmed(); !s.Restarting {
					beginAgain(s)
				}
			}))
		},
		output(func(step *Step, _ State, _ Observed) {
			if step.Reason == ReasonRestarted {
				step.State.Progress = Progress{Done: 1}
			}
		}),
	}, {
		"a transfer goes back to Accepted only when the mover's pod is gone, or has been waited for: others cancel what is Accepted and has a failed pod",
		func(m *moment) bool {
			back := m.in(Prepared, InProgress) && m.writes(Accepted)
			return implies(back, m.is(objects.Absent) || m.unconfirmed() || m.replaces() && m.left(m.State.AcceptedAt, m.Limits.TerminationGrace) <= 0)
		},
		output(func(step *Step, _ State, _ Observed) {
			if step.State.Restarting {
				beginAgain(&step.State)
			}
		}),
	}, {
		"a mover that was given up is removed, and once its pod is gone or was waited for the next one may be made",
		func(m *moment) bool {
			if !m.replaces() || !m.acts() || m.asked() || !m.sourceWaits() {
				return m.Step.Reason != ReasonRequeued
			}
			left := m.left(m.State.AcceptedAt, m.Limits.TerminationGrace)
			switch {
			case m.is(objects.Absent) || left <= 0:
				return m.changes(beginAgain)
			case m.is(objects.Terminating):
				return m.waits(left)
			}
			return m.Step.Action == Remove && m.Step.After == left
		},
		input(func(s *State, _ *Observed, _ *Limits) { s.Restarting = false }),
	}, {
		"after so many restarts a lost mover fails the transfer and says why",
		func(m *moment) bool {
			return m.Step.State.Restarts <= m.Limits.Retries &&
				implies(m.loses() && m.State.Restarts >= m.Limits.Retries, m.fails(ReasonMoverLost, m.lostBy()))
		},
		input(func(_ *State, _ *Observed, lim *Limits) { lim.Retries++ }),
	}, {
		"a mover that stalls is replaced if it is the first one, and fails the transfer if not",
		func(m *moment) bool {
			if !m.stalled() {
				return m.Step.Reason != ReasonMoverStalled && m.Step.Lost != objects.LostStalled
			}
			if m.State.Restarts > 0 {
				return m.fails(ReasonMoverStalled, "no byte moved and no Event sent for 2h0m0s")
			}
			return implies(m.sourceWaits(), m.restarts() && m.Step.Lost == objects.LostStalled)
		},
		input(func(_ *State, observed *Observed, _ *Limits) { observed.ActiveAt = observed.ActiveAt.Add(tick) }),
	}, {
		"a restart, and nothing else, counts why the mover was lost",
		func(m *moment) bool {
			if !m.restarts() {
				return m.Step.Lost == ""
			}
			return m.Step.Reason == ReasonRestarted && slices.Contains(objects.LostReasons(), m.Step.Lost) &&
				implies(m.is(objects.Absent), m.Step.Lost == objects.LostVanished) && implies(m.nodeLost(), m.Step.Lost == objects.LostNode)
		},
		output(func(step *Step, _ State, observed Observed) { step.Lost = observed.Exposure.Reason }),
	}, {
		"the volume of a pod is on one node: if that is lost with the mover the transfer fails at once and names it",
		func(m *moment) bool {
			waits := m.in(Accepted) && m.acts() && m.left(m.State.AcceptedAt, m.Limits.PrepareTimeout) > 0 || m.in(Prepared) && m.acts() && !m.replaces() || m.works() && m.acts() && m.in(InProgress)
			return implies(waits && m.stranded() && !m.asked() && m.sourceWaits(), m.fails(ReasonMoverLost, "node "+m.Seen.Exposure.Node+" "))
		},
		input(func(s *State, _ *Observed, _ *Limits) { s.NodeBound = false }),
	}, {
		"a mover's pod is deleted by force where its node is lost, and nowhere else",
		func(m *moment) bool { return m.Step.Force == (m.Step.Action == Remove && m.Seen.NodeLost) },
		output(func(step *Step, s State, _ Observed) { step.Force = step.Action == Remove && s.Phase.Terminal() }),
	}, {
		"a transfer whose source pod is gone fails instead of getting a mover",
		func(m *moment) bool {
			lacks := m.lacks()
			return implies(m.Seen.SourceGone && lacks && m.acts() && !m.asked(), m.fails(ReasonSourceGone, "does not exist"))
		},
		input(func(s *State, observed *Observed, _ *Limits) {
			observed.SourceGone = observed.SourceGone && s.Phase != InProgress
		}),
	}, {
		"a volume whose pod went on gets no mover and no mover is told to start: the transfer fails and says what is known",
		func(m *moment) bool {
			lacks := m.lacks()
			return implies(m.Seen.PodResumed != "" && lacks && m.acts() && !m.asked(),
				m.fails(ReasonUnconfirmed, m.Seen.PodResumed) && implies(m.in(Accepted) || m.replaces(), contains(m.Step.State.Message, m.State.Message)))
		},
		input(func(s *State, observed *Observed, _ *Limits) {
			if s.Restarts == 0 {
				observed.PodResumed = ""
			}
		}),
	}, {
		"a mover that works goes on though the pod of its volume is gone: it says itself how that ends",
		func(m *moment) bool {
			works := m.in(InProgress, Canceling) && !m.replaces() && !m.stalled() && (m.alive() || m.is(objects.Succeeded, objects.Terminating))
			return implies(works, m.Step.Reason != ReasonSourceGone)
		},
		func(s State, observed Observed, lim Limits) Step {
			if s.Phase == InProgress && s.MoverSucceededAt.IsZero() && observed.OwnsMover && observed.SourceGone {
				return failed(s, observed, ReasonSourceGone, sourceGone)
			}
			return Next(s, observed, lim)
		},
	}}
}
