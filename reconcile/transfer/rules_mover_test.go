package transfer

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

func moverRules() []rule {
	return []rule{{
		"a mover is created when there is none and the restart delay is over, and observed until the prepare timeout",
		func(m *situation) bool {
			pause := m.left(m.State.AcceptedAt, pauseBefore(m.State.Restarts, m.Limits))
			paused := m.State.Restarts > 0 && pause > 0
			makes := m.preparing() && m.exposes() && m.is(objects.Absent) && !m.loses() && !paused
			return (m.Step.Action == Expose) == makes &&
				implies(makes, m.Step == Step{Action: Expose, After: m.left(m.State.AcceptedAt, m.Limits.PrepareTimeout)})
		},
	}, {
		"the restart delay is 10 s, and doubles each time",
		func(m *situation) bool {
			pause := m.left(m.State.AcceptedAt, pauseBefore(m.State.Restarts, m.Limits))
			if !m.preparing() || !m.exposes() || !m.is(objects.Absent) || m.loses() || m.State.Restarts == 0 || pause <= 0 {
				return true
			}
			return m.waits(min(pause, m.left(m.State.AcceptedAt, m.Limits.PrepareTimeout)))
		},
	}, {
		"a mover that was given up is deleted and never adopted",
		func(m *situation) bool {
			if !m.preparing() || !m.stale() {
				return true
			}
			if m.exposes() && !m.is(objects.Terminating) {
				return m.Step.Action == DeleteMover
			}
			return m.Step.Action == Wait
		},
	}, {
		"a mover that can never run fails the transfer at once, with the reason",
		func(m *situation) bool {
			waits := m.preparing() && m.exposes() && !m.stale() || m.ready() && m.acts()
			return implies(waits && m.is(objects.Unrunnable), m.fails(ReasonCannotRun, exposureMessage))
		},
	}, {
		"a mover that ran and failed fails the transfer, with its message",
		func(m *situation) bool {
			reported := m.Observed.Exposure.Canceled && (m.in(Canceling) || m.in(InProgress) && m.stopRequested())
			worked := m.preparing() && m.exposes() && !m.stale() || m.ready() && m.acts() || m.works() && m.acts() && !reported
			return implies(worked && m.is(objects.Failed), m.fails(ReasonMoverFailed, exposureMessage))
		},
	}, {
		"a mover that ended before InProgress fails the transfer",
		func(m *situation) bool {
			early := m.preparing() && m.exposes() && !m.stale() || m.ready() && m.acts()
			return implies(early && m.is(objects.Succeeded), m.fails(ReasonMoverFailed, "mover ended before its start"))
		},
	}}
}

// loses reports whether a mover was lost that may have a successor.
func (s *situation) loses() bool {
	before := s.is(objects.Lost) || s.is(objects.Absent) && s.Observed.Loss != (Loss{})
	lost := s.preparing() && s.exposes() && !s.stale() && before ||
		s.ready() && s.acts() && s.lostOrAbsent() ||
		s.in(InProgress) && s.works() && s.acts() && s.lostOrAbsent() && !s.stopRequested() && s.sourceWaits()
	return lost && !s.stranded()
}

// discards reports whether the pod of a lost mover must be deleted before the loss is counted: an agent of Velero could
// read it as failed. In Accepted a mover on a lost node looks as before. Later the deletion has a deadline.
func (s *situation) discards() bool {
	counts := s.is(objects.Absent) || s.in(Accepted) && s.nodeLost() || !s.in(Accepted) && s.graceOver()
	return (s.loses() || s.replacesStalled()) && !counts && s.State.Restarts < s.Limits.Retries
}

// replacesStalled reports whether a stalled mover gets a successor.
func (s *situation) replacesStalled() bool {
	return s.stalled() && s.sourceWaits() && s.State.Restarts == 0
}

// lacks reports whether a mover is still to be created, replaced or started.
func (s *situation) lacks() bool {
	return s.in(Accepted, Prepared) || s.in(InProgress) && s.works() && s.lostOrAbsent()
}

func restartRules() []rule {
	return []rule{{
		"a lost mover is replaced as long as retries are left",
		func(m *situation) bool {
			return m.restarts() == (m.loses() && !m.discards() && m.State.Restarts < m.Limits.Retries)
		},
	}, {
		"a restart is one write of the phase, the count and the reason, without the node and the progress of the lost mover",
		func(m *situation) bool {
			return implies(m.restarts(), m.changes(func(s *State) {
				s.AcceptedAt, s.Message = m.Observed.Now, m.lostBy()
				s.Restarts++
				if s.Exposer == "" {
					s.Exposer = here
				}
				s.Phase, s.StartedAt, s.Progress = Accepted, time.Time{}, Progress{}
				if !s.NodeBound {
					s.Node = ""
				}
			}))
		},
	}, {
		"the pod of a lost mover is deleted before the restart, with a deadline, and the reason of the loss is kept",
		func(m *situation) bool {
			deadline := m.left(m.State.AcceptedAt, m.Limits.PrepareTimeout)
			if !m.in(Accepted) {
				deadline = m.left(cmp.Or(m.Observed.DeletingAt, m.Observed.Now), m.Limits.TerminationGrace)
			}
			return implies(m.discards(), m.Step == Step{
				Action: DeleteMover, Reason: ReasonStale, Force: m.Observed.NodeLost, After: deadline,
				Loss: Loss{Reason: m.Step.Loss.Reason, Message: m.lostBy()},
			}) && implies(m.in(Accepted) && m.restarts(), m.is(objects.Absent) || m.nodeLost())
		},
	}, {
		"a transfer returns to Accepted only when the mover's pod is deleted or the grace period is over: agents of Velero cancel an Accepted transfer with a failed pod",
		func(m *situation) bool {
			back := m.in(Prepared, InProgress) && m.writes(Accepted)
			return implies(back, m.is(objects.Absent) || m.graceOver())
		},
	}, {
		"after the last restart a lost mover fails the transfer, with the reason",
		func(m *situation) bool {
			return m.Step.State.Restarts <= m.Limits.Retries &&
				implies(m.loses() && m.State.Restarts >= m.Limits.Retries, m.fails(ReasonMoverLost, m.lostBy()))
		},
	}, {
		"a stalled mover is replaced the first time, and fails the transfer afterwards",
		func(m *situation) bool {
			if !m.stalled() {
				return m.Step.Reason != ReasonMoverStalled && implies(m.Observed.Loss == Loss{}, m.Step.Loss.Reason != objects.LostStalled)
			}
			if m.State.Restarts > 0 {
				return m.fails(ReasonMoverStalled, "no byte moved and no Event sent within 2h0m0s; given up after ")
			}
			return implies(m.sourceWaits(), m.discards() && m.Step.Loss.Reason == objects.LostStalled)
		},
	}, {
		"only a restart and the deletion before it carry the reason of the loss",
		func(m *situation) bool {
			if !m.restarts() && !m.discards() {
				return m.Step.Loss == Loss{}
			}
			vanished := m.is(objects.Absent) && m.Observed.Loss == Loss{}
			return implies(m.restarts(), m.Step.Reason == ReasonRestarted) && slices.Contains(objects.LostReasons(), m.Step.Loss.Reason) && m.Step.Loss.Message == m.lostBy() &&
				implies(vanished, m.Step.Loss.Reason == objects.LostVanished) && implies(m.nodeLost(), m.Step.Loss.Reason == objects.LostNode)
		},
	}, {
		"a node-bound transfer whose node and mover are lost fails at once, and names the node",
		func(m *situation) bool {
			waits := m.in(Accepted) && m.acts() && m.left(m.State.AcceptedAt, m.Limits.PrepareTimeout) > 0 || m.in(Prepared) && m.acts() || m.works() && m.acts() && m.in(InProgress)
			return implies(waits && m.stranded() && !m.stopRequested() && m.sourceWaits(), m.fails(ReasonMoverLost, "node "+m.Observed.Exposure.Node+" "))
		},
	}, {
		"a mover's pod is force-deleted exactly if its node is lost",
		func(m *situation) bool { return m.Step.Force == (m.removes() && m.Observed.NodeLost) },
	}, {
		"a transfer whose source pod is deleted fails instead of getting a mover",
		func(m *situation) bool {
			lacks := m.lacks()
			return implies(m.Observed.SourceGone && lacks && m.acts() && !m.stopRequested(), m.fails(ReasonSourceGone, "does not exist"))
		},
	}, {
		"a volume whose pod resumed gets no mover and no mover is started: the transfer fails, with what is known",
		func(m *situation) bool {
			lacks := m.lacks()
			return implies(m.Observed.PodResumed != "" && lacks && m.acts() && !m.stopRequested(),
				m.fails(ReasonUnconfirmed, "") && strings.HasSuffix(m.Step.State.Message, m.Observed.PodResumed) && implies(m.in(Accepted), contains(m.Step.State.Message, m.State.Message)))
		},
	}, {
		"a mover that works continues though the pod of its volume is deleted: its own result counts",
		func(m *situation) bool {
			works := m.in(InProgress, Canceling) && !m.stalled() && (m.alive() || m.is(objects.Succeeded, objects.Terminating))
			return implies(works, m.Step.Reason != ReasonSourceGone)
		},
	}}
}
