package transfer

import (
	"time"

	"github.com/lateen-project/lateen/exposer/build"
)

// deliverLeft is what remains of the time for a delivery: an agent that has not tried yet has its grace before it.
func (m *moment) deliverLeft() time.Duration {
	grace := m.Limits.DeliverGrace
	if since := m.Seen.DeliveringSince; !since.IsZero() {
		grace = m.left(since, m.Limits.DeliverGrace)
	}
	return max(m.left(m.State.MovedAt, m.Limits.DeliverTimeout), grace)
}

func deliveryRules() []rule {
	return []rule{{
		"a success that is still to be delivered is noted in one write, with the final progress, and nothing ends",
		func(m *moment) bool {
			result := m.Seen.Result
			notes := m.works() && m.acts() && m.Seen.Delivers && m.is(build.Succeeded) && result != nil
			if !notes {
				return m.Step.Reason != ReasonMoved
			}
			return m.changes(func(s *State) {
				s.MovedAt, s.Outcome, s.Message = m.Seen.Now, *result, result.Note
				s.Progress = Progress{Total: result.TotalBytes, Done: result.TotalBytes}
			})
		},
		input(func(_ *State, seen *Seen, _ *Limits) { seen.Delivers = false }),
	}, {
		"what was moved is delivered until its time is over, whatever becomes of the mover and whoever cancels",
		func(m *moment) bool {
			left := m.deliverLeft()
			delivers := m.moved() && m.acts() && !m.Seen.Delivered && left > 0
			return (m.Step.Action == Deliver) == delivers && implies(delivers, m.Step.After == left)
		},
		func(s State, seen Seen, lim Limits) Step {
			if seen.Exposure.Condition == build.Lost {
				s.MovedAt, seen.DeliveringSince = s.MovedAt.Add(-lim.DeliverTimeout), s.MovedAt.Add(-lim.DeliverGrace)
			}
			return Next(s, seen, lim)
		},
	}, {
		"what is not delivered in time is kept, and nothing that was delivered is",
		func(m *moment) bool {
			late := m.moved() && m.acts() && !m.Seen.Delivered && m.deliverLeft() <= 0
			return (m.Step.Action == Keep) == late
		},
		input(func(_ *State, _ *Seen, lim *Limits) { lim.DeliverGrace++ }),
	}, {
		"what is delivered is Completed, and nothing else of it changes",
		func(m *moment) bool {
			return implies(m.moved() && m.acts() && m.Seen.Delivered, m.changes(func(s *State) {
				s.Phase, s.CompletedAt = Completed, m.Seen.Now
			}))
		},
		output(func(step *Step, s State, _ Seen) {
			if step.Reason == ReasonCompleted && !s.MovedAt.IsZero() {
				step.State.Progress = Progress{}
			}
		}),
	}}
}

// delivery is what becomes of what was restored: nothing is to be done with it, it is not moved yet, it is
// moved and there is time left to deliver it or not, this agent has tried or not, it is delivered.
func delivery() dimension {
	moved := func(ago time.Duration, delivered bool) choice {
		return func(m *moment) {
			m.Seen.Delivers, m.Seen.Delivered = true, delivered
			m.State.MovedAt = now().Add(-ago)
		}
	}
	tried := func(ago time.Duration, moved choice) choice {
		return func(m *moment) {
			moved(m)
			m.Seen.DeliveringSince = now().Add(-ago)
		}
	}
	timeout, grace := DefaultLimits().DeliverTimeout, DefaultLimits().DeliverGrace
	return dimension{
		func(*moment) {},
		func(m *moment) { m.Seen.Delivers = true },
		moved(timeout-tick, false), moved(timeout, false), moved(timeout, true),
		tried(grace-tick, moved(timeout, false)), tried(grace, moved(timeout, false)), tried(grace, moved(timeout-tick, false)),
	}
}
