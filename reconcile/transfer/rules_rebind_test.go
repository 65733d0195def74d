package transfer

import (
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

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
