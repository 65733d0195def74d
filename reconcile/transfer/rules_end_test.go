package transfer

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

func endRules() []rule {
	reasons := TerminalReasons()
	return []rule{{
		"a transfer whose mover does not run in time fails exactly at the timeout, with the diagnosis",
		func(m *situation) bool {
			finished := m.in(Accepted) && m.acts() && !m.stopRequested() && m.sourceWaits() && m.late()
			why := m.Observed.Exposure.Message + m.Observed.Loss.Message
			if m.nodeLost() {
				why = m.lostBy()
			}
			return (m.Step.Reason == ReasonPrepareTimeout) == finished && implies(finished,
				m.fails(ReasonPrepareTimeout, why) && strings.HasSuffix(m.Step.State.Message, m.Observed.Diagnosis))
		},
	}, {
		"exactly the terminal transfers get a completion time",
		func(m *situation) bool {
			if m.ends() {
				return m.Step.State.CompletedAt.Equal(m.Observed.Now)
			}
			return m.Step.Action != Write || m.Step.State.CompletedAt.Equal(m.State.CompletedAt)
		},
	}, {
		"the terminal reason is one of the metrics",
		func(m *situation) bool {
			return implies(m.ends(), slices.Contains(reasons[m.Step.State.Phase], m.Step.Reason))
		},
	}, {
		"a failed transfer has a message",
		func(m *situation) bool { return implies(m.ends() && m.writes(Failed), len(m.Step.State.Message) > 10) },
	}}
}

func outcomeRules() []rule {
	return []rule{{
		"Completed requires a mover that started, succeeded and left a readable result",
		func(m *situation) bool {
			worked := m.works() && m.is(objects.Succeeded) && m.Observed.Result != nil && !m.Observed.Rebinds
			return (m.ends() && m.writes(Completed)) == (m.acts() && (worked || m.moved() && m.Observed.Rebound))
		},
	}, {
		"a success with an unreadable result fails the transfer, with the parse error",
		func(m *situation) bool {
			garbage := m.works() && m.acts() && m.is(objects.Succeeded) && m.Observed.Result == nil
			return implies(garbage, m.fails(ReasonUnreadable, m.Observed.ResultError))
		},
	}, {
		"completing is one write: phase, time, outcome, final progress, and a message only of an empty volume",
		func(m *situation) bool {
			if !m.ends() || !m.writes(Completed) || m.moved() {
				return true
			}
			result := m.Observed.Result
			if result == nil {
				return false
			}
			return m.changes(func(s *State) {
				s.Phase, s.CompletedAt, s.Outcome, s.Message = Completed, m.Observed.Now, *result, result.Note
				s.Progress = Progress{Total: result.TotalBytes, Done: result.TotalBytes}
			})
		},
	}, {
		"failing and canceling keep the last reported progress",
		func(m *situation) bool {
			return implies(m.ends() && m.writes(Failed, Canceled), m.Step.State.Progress == m.known())
		},
	}}
}

// known is the progress of the current mover: its last report, or what was written before.
func (s *situation) known() Progress {
	if s.in(InProgress, Canceling) && !s.moved() && !s.Observed.Report.At.Before(s.State.StartedAt) {
		return s.Observed.Report.Progress
	}
	return s.State.Progress
}

func stepRules() []rule {
	return []rule{{
		"every wait that no event is certain to end has a deadline",
		func(m *situation) bool {
			waits := m.Step.Action == Wait || m.Step.Reason == ReasonStale && m.discards() || m.Step.Action == Expose || m.Step.Action == Rebind
			_, stalls := m.stallsIn()
			bounded := m.isNew() && m.exposes() && !m.Observed.Eligible || m.in(Accepted) && m.exposes() || m.in(Canceling) && m.works() && m.acts() && m.alive() || m.moved() && m.acts() || stalls && m.acts() && !m.stopRequested()
			return implies(waits && bounded, m.Step.After > 0)
		},
	}, {
		"a mover whose pod is deleting is awaited for the grace period, in every phase in which it may work",
		func(m *situation) bool {
			waits := m.ready() || m.in(InProgress) && m.works() && !m.stopRequested() || m.in(Canceling) && m.works()
			return implies(waits && m.acts() && m.is(objects.Terminating), m.waits(m.left(m.Observed.DeletingAt, m.Limits.TerminationGrace)))
		},
	}, {
		"a wait names its reason",
		func(m *situation) bool {
			reasons, known := map[Phase][]WaitReason{
				New:        {WaitPrecondition, WaitAdmission},
				Accepted:   {WaitRestartDelay, WaitMoverStart},
				Prepared:   {WaitMoverStart, WaitSlot},
				InProgress: {WaitNothing},
				Canceling:  {WaitCancel},
				Completed:  {WaitNothing}, Failed: {WaitNothing}, Canceled: {WaitNothing},
			}[m.State.Phase]
			ends := m.Observed.Exposure.Condition == objects.Terminating || m.stale()
			switch {
			case m.Step.Action != Wait:
				return m.Step.WaitsFor == WaitNothing
			case m.State.Foreign || !m.Observed.Acts():
				return m.Step.WaitsFor == WaitAgent
			case !known:
				return m.Step.WaitsFor == WaitNewPhase
			case m.Step.WaitsFor == WaitAgent:
				return !m.acts() || m.in(Accepted) && !m.exposes()
			}
			return slices.Contains(reasons, m.Step.WaitsFor) || ends && m.Step.WaitsFor == WaitMoverEnd
		},
	}, {
		"a step has one effect",
		func(m *situation) bool {
			switch m.Step.Action {
			case Wait:
				return m.waits(m.Step.After)
			case Expose, Rebind:
				return m.Step == Step{Action: m.Step.Action, After: m.Step.After}
			case AbandonRebind:
				return m.Step == Step{Action: AbandonRebind}
			case CleanUp:
				return m.Step == Step{Action: CleanUp, Force: m.Step.Force, After: m.Step.After}
			case DeleteMover:
				return m.Step == Step{Action: m.Step.Action, Reason: m.Step.Reason, Force: m.Step.Force, Loss: m.Step.Loss, After: m.Step.After} && m.Step.Reason != ""
			case Write:
				return m.Step.After == 0 && m.Step.Reason != ""
			}
			return false
		},
	}, {
		"a write changes the state, otherwise it would repeat endlessly",
		func(m *situation) bool { return implies(m.Step.Action == Write, m.Step.State != m.State) },
	}, {
		"a terminal transfer has a start time: that of its start, otherwise that of its end",
		func(m *situation) bool {
			return implies(m.ends(), m.Step.State.StartedAt.Equal(cmp.Or(m.State.StartedAt, m.Observed.Now)))
		},
	}, {
		"a write keeps all other fields",
		keepsTheRest,
	}}
}

func keepsTheRest(m *situation) bool {
	if m.Step.Action != Write {
		return true
	}
	s, w := m.State, m.Step.State
	begins, restarts, ends := m.isNew() && m.writes(Accepted), m.restarts(), m.ends()
	starts := m.in(Prepared) && m.writes(InProgress)
	return w.Deleting == s.Deleting && w.UnsupportedReason == s.UnsupportedReason && w.CreatedAt.Equal(s.CreatedAt) &&
		(w.Finalizer == s.Finalizer || begins || m.writes(New) || m.in(Completed, Failed, Canceled) || ends && s.OwnsSnapshot) &&
		(w.MoverSucceededAt.Equal(s.MoverSucceededAt) || m.Step.Reason == ReasonMoved) &&
		(w.Acceptor == s.Acceptor || begins) && (w.Exposer == s.Exposer || begins || restarts || m.Step.Reason == ReasonTakenOver || m.writes(Prepared) || m.in(Completed, Failed, Canceled)) && w.NodeBound == s.NodeBound && w.OwnsSnapshot == s.OwnsSnapshot &&
		(w.AcceptedAt.Equal(s.AcceptedAt) || begins || restarts) &&
		(w.StartedAt.Equal(s.StartedAt) || starts || restarts || ends && s.StartedAt.IsZero()) &&
		(w.Node == s.Node || begins || restarts || m.writes(Prepared)) &&
		(w.Restarts == s.Restarts || restarts) &&
		(w.Message == s.Message || restarts || ends || m.Step.Reason == ReasonMoved) &&
		(w.Progress == s.Progress || restarts || ends || m.Step.Reason == ReasonMoved) &&
		(w.Outcome == s.Outcome || m.writes(Completed) && ends || m.Step.Reason == ReasonMoved)
}

// deliverLeft returns the time left for a rebind. An agent that has not tried yet has its full grace period.
func (s *situation) deliverLeft() time.Duration {
	grace := s.Limits.RebindGrace
	if since := s.Observed.RebindingSince; !since.IsZero() {
		grace = s.left(since, s.Limits.RebindGrace)
	}
	return max(s.left(s.State.MoverSucceededAt, s.Limits.RebindTimeout), grace)
}

func deliveryRules() []rule {
	return []rule{{
		"a success before the rebind is one write with the final progress and no terminal phase",
		func(m *situation) bool {
			result := m.Observed.Result
			notes := m.works() && m.acts() && m.Observed.Rebinds && m.is(objects.Succeeded) && result != nil
			if !notes {
				return m.Step.Reason != ReasonMoved
			}
			return m.changes(func(s *State) {
				s.MoverSucceededAt, s.Outcome, s.Message = m.Observed.Now, *result, result.Note
				s.Progress = Progress{Total: result.TotalBytes, Done: result.TotalBytes}
			})
		},
	}, {
		"moved data is rebound until the rebind timeout, whatever happens to the mover and despite a cancel",
		func(m *situation) bool {
			left := m.deliverLeft()
			delivers := m.moved() && m.acts() && !m.Observed.Rebound && left > 0
			return (m.Step.Action == Rebind) == delivers && implies(delivers, m.Step.After == left)
		},
	}, {
		"a volume that was not rebound in time is kept, and no rebound one is",
		func(m *situation) bool {
			late := m.moved() && m.acts() && !m.Observed.Rebound && m.deliverLeft() <= 0
			return (m.Step.Action == AbandonRebind) == late
		},
	}, {
		"a rebound transfer becomes Completed, and nothing else of it changes",
		func(m *situation) bool {
			return implies(m.moved() && m.acts() && m.Observed.Rebound, m.changes(func(s *State) {
				s.Phase, s.CompletedAt = Completed, m.Observed.Now
			}))
		},
	}}
}

// delivery is the state of the rebind: not required, not moved yet, or moved. A moved volume varies in the time
// left, in whether this agent has tried, and in whether the volume is rebound.
func delivery() dimension {
	moved := func(ago time.Duration, delivered bool) choice {
		return func(m *situation) {
			m.Observed.Rebinds, m.Observed.Rebound = true, delivered
			m.State.MoverSucceededAt = now().Add(-ago)
		}
	}
	tried := func(ago time.Duration, moved choice) choice {
		return func(m *situation) {
			moved(m)
			m.Observed.RebindingSince = now().Add(-ago)
		}
	}
	timeout, grace := DefaultLimits().RebindTimeout, DefaultLimits().RebindGrace
	return dimension{
		func(*situation) {},
		func(m *situation) { m.Observed.Rebinds = true },
		moved(timeout-tick, false), moved(timeout, false), moved(timeout, true),
		tried(grace-tick, moved(timeout, false)), tried(grace, moved(timeout, false)), tried(grace, moved(timeout-tick, false)),
	}
}

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
	stalls := s.stalled() && s.sourceWaits() && s.State.Restarts == 0 // then it gets a successor
	return (s.loses() || stalls) && !counts && s.State.Restarts < s.Limits.Retries
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
			return m.Step.State.Restarts <= max(m.Limits.Retries, m.State.Restarts) &&
				implies(m.loses() && m.State.Restarts >= m.Limits.Retries, m.fails(ReasonMoverLost, m.lostBy()+"; given up after "))
		},
	}, {
		"a stalled mover is replaced the first time, and fails the transfer afterwards",
		func(m *situation) bool {
			if !m.stalled() {
				return m.Step.Reason != ReasonMoverStalled && implies(m.Observed.Loss == Loss{}, m.Step.Loss.Reason != objects.LostStalled)
			}
			if m.State.Restarts > 0 || m.Limits.Retries == 0 {
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
		func(m *situation) bool {
			deletes := m.Step.Action == DeleteMover || m.Step.Action == CleanUp
			return m.Step.Force == (deletes && m.Observed.NodeLost)
		},
	}, {
		"a transfer whose source pod is deleted fails instead of getting a mover",
		func(m *situation) bool {
			return implies(m.Observed.SourceGone && m.lacks() && m.acts() && !m.stopRequested(), m.fails(ReasonSourceGone, "does not exist"))
		},
	}, {
		"a volume whose pod resumed gets no mover and no mover is started: the transfer fails, with what is known",
		func(m *situation) bool {
			return implies(m.Observed.PodResumed != "" && m.lacks() && m.acts() && !m.stopRequested(),
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
