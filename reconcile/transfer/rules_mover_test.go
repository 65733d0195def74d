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
			makes := m.preparing() && m.mine() && m.is(objects.Absent) && !m.loses() && !paused
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
			if !m.preparing() || !m.mine() || !m.is(objects.Absent) || m.loses() || m.State.Restarts == 0 || pause <= 0 {
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
				return m.Step.Action == DeleteMover
			}
			return m.Step.Action == Wait
		},
		input(func(s *State, observed *Observed, _ *Limits) { observed.Exposure.Attempt = s.Restarts }),
	}, {
		"a mover that is being deleted still runs: it is neither replaced nor removed again",
		func(m *moment) bool {
			return implies(m.is(objects.Terminating) && !m.Seen.HasLeftovers, m.Step.Action != Expose && !m.removes() && !m.restarts())
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
			return implies(early && m.is(objects.Succeeded), m.fails(ReasonMoverFailed, "mover ended before its start"))
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
	before := m.is(objects.Lost) || m.is(objects.Absent) && m.Seen.Loss != (Loss{})
	lost := m.preparing() && m.mine() && !m.stale() && before ||
		m.ready() && m.acts() && m.gone() ||
		m.in(InProgress) && m.works() && m.acts() && m.gone() && !m.asked() && m.sourceWaits()
	return lost && !m.stranded()
}

// discards reports whether a mover was lost before it was ready, and its pod must go before the loss is counted.
func (m *moment) discards() bool {
	return m.in(Accepted) && m.loses() && !m.is(objects.Absent) && m.State.Restarts < m.Limits.Retries
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
			return m.restarts() == (stalls || m.loses() && !m.discards() && m.State.Restarts < m.Limits.Retries)
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
				if s.Restarting = !m.is(objects.Absent) && !m.unconfirmed(); !s.Restarting {
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
		"the pod of a mover that was lost in Accepted goes before anything is written, and it is kept in mind why it was lost",
		func(m *moment) bool {
			return implies(m.discards(), m.Step == Step{
				Action: DeleteMover, Reason: ReasonStale, Force: m.Seen.NodeLost, After: m.left(m.State.AcceptedAt, m.Limits.PrepareTimeout),
				Loss: Loss{Reason: m.Step.Loss.Reason, Message: m.lostBy()},
			}) && implies(m.in(Accepted) && m.restarts(), m.is(objects.Absent))
		},
		func(s State, observed Observed, lim Limits) Step {
			if s.Phase == Accepted && observed.Exposure.Condition == objects.Lost {
				s.Phase = Prepared
			}
			return Next(s, observed, lim)
		},
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
			return m.Step.Action == DeleteMover && m.Step.After == left
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
				return m.Step.Reason != ReasonMoverStalled && m.Step.Loss.Reason != objects.LostStalled
			}
			if m.State.Restarts > 0 {
				return m.fails(ReasonMoverStalled, "no byte moved and no Event sent within 2h0m0s")
			}
			return implies(m.sourceWaits(), m.restarts() && m.Step.Loss.Reason == objects.LostStalled)
		},
		input(func(_ *State, observed *Observed, _ *Limits) { observed.ActiveAt = observed.ActiveAt.Add(tick) }),
	}, {
		"a restart, and nothing but the deletion before it, says why the mover was lost",
		func(m *moment) bool {
			if !m.restarts() && !m.discards() {
				return m.Step.Loss == Loss{}
			}
			vanished := m.is(objects.Absent) && m.Seen.Loss == Loss{}
			return implies(m.restarts(), m.Step.Reason == ReasonRestarted) && slices.Contains(objects.LostReasons(), m.Step.Loss.Reason) && m.Step.Loss.Message == m.lostBy() &&
				implies(vanished, m.Step.Loss.Reason == objects.LostVanished) && implies(m.nodeLost(), m.Step.Loss.Reason == objects.LostNode)
		},
		output(func(step *Step, _ State, observed Observed) { step.Loss.Reason = observed.Exposure.Reason }),
	}, {
		"the volume of a pod is on one node: if that is lost with the mover the transfer fails at once and names it",
		func(m *moment) bool {
			waits := m.in(Accepted) && m.acts() && m.left(m.State.AcceptedAt, m.Limits.PrepareTimeout) > 0 || m.in(Prepared) && m.acts() && !m.replaces() || m.works() && m.acts() && m.in(InProgress)
			return implies(waits && m.stranded() && !m.asked() && m.sourceWaits(), m.fails(ReasonMoverLost, "node "+m.Seen.Exposure.Node+" "))
		},
		input(func(s *State, _ *Observed, _ *Limits) { s.NodeBound = false }),
	}, {
		"a mover's pod is deleted by force where its node is lost, and nowhere else",
		func(m *moment) bool { return m.Step.Force == (m.removes() && m.Seen.NodeLost) },
		output(func(step *Step, _ State, _ Observed) { step.Force = step.Action == CleanUp }),
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
