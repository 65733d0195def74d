package transfer

import (
	"cmp"
	"slices"
	"strings"

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
	}, {
		"progress is written if it is new and the mover has worked for a while; that of an earlier mover is ignored",
		func(m *situation) bool {
			idle := m.in(InProgress) && m.works() && m.acts() && !m.stopRequested() && m.alive() && !m.stalled()
			if !idle {
				return m.Step.Reason != ReasonProgress
			}
			early := m.State.StartedAt.Add(m.Limits.FirstProgress).Sub(m.Observed.Now)
			switch {
			case m.known() == m.State.Progress:
				left, _ := m.stallsIn()
				return m.waits(left)
			case early > 0:
				return m.waits(early)
			}
			return m.changes(func(s *State) { s.Progress = m.known() })
		},
	}}
}

// known is the progress of the current mover: its last report, or what was written before.
func (s *situation) known() Progress {
	if s.in(InProgress, Canceling) && !s.moved() && !s.Observed.ProgressAt.Before(s.State.StartedAt) {
		return s.Observed.Progress
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
			case CleanUp, AbandonRebind:
				return m.Step == Step{Action: m.Step.Action, Force: m.Step.Force}
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
		(w.Progress == s.Progress || restarts || ends || m.in(InProgress, Canceling) && m.writes(m.State.Phase)) &&
		(w.Outcome == s.Outcome || m.writes(Completed) && ends || m.Step.Reason == ReasonMoved)
}
