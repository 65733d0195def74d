package transfer

import (
	"strings"

	"github.com/lateen-project/lateen/exposer/objects"
)

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
