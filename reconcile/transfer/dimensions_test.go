package transfer

import "time"

// activity is whether the mover reported anything recently, and whether a stall timeout is set.
func activity() dimension {
	at := func(ago, timeout time.Duration) choice {
		return func(m *moment) { m.Seen.ActiveAt, m.Limits.StallTimeout = now().Add(-ago), timeout }
	}
	timeout := DefaultLimits().StallTimeout
	return dimension{at(timeout-tick, timeout), at(timeout, timeout), at(timeout, 0)}
}

func finalizer() dimension { return either(func(m *moment, is bool) { m.State.Finalizer = is }) }
func eligible() dimension {
	return dimension{
		func(*moment) {},
		func(m *moment) { m.Seen.Eligible = true },
		func(m *moment) { m.Seen.Unbounded = true },
		func(m *moment) { m.Seen.SourceGone = true },
	}
}

func room() dimension { return either(func(m *moment, is bool) { m.Seen.Admitted = is }) }
func slot() dimension {
	return dimension{
		func(*moment) {},
		func(m *moment) { m.Seen.SlotIn = tick },
		func(m *moment) { m.Seen.HasSlot = true },
	}
}
func heard() dimension { return either(func(m *moment, is bool) { m.Seen.Started = is }) }
func noSource() dimension {
	return dimension{
		func(*moment) {},
		func(m *moment) { m.Seen.SourceGone = true },
		func(m *moment) { m.Seen.PodResumed = "its pod went on" },
	}
}

// replaced is how long ago the mover was given up, if at all, and the state of the source since.
func replaced(sources ...choice) dimension {
	ago := func(since time.Duration, then choice) choice {
		return func(m *moment) {
			if m.State.MoverSucceededAt.IsZero() { // a mover that succeeded is never given up
				m.State.Restarting, m.State.AcceptedAt = true, now().Add(-since)
				then(m)
			}
		}
	}
	grace, nothing := DefaultLimits().TerminationGrace, func(*moment) {}
	all := dimension{nothing, ago(grace-tick, nothing), ago(grace, nothing)}
	for _, deleted := range sources {
		all = append(all, ago(grace-tick, deleted))
	}
	return all
}

func refusal() dimension {
	return oneOf(func(m *moment, why string) { m.State.UnsupportedReason = why }, "", "uploader is not supported")
}

func diagnosis() dimension {
	return oneOf(func(m *moment, why string) { m.Seen.Diagnosis = why }, "", "quota exceeded")
}

// alternatives combines dimensions that each decide alone: every choice of one, with the others at their first.
func alternatives(dimensions ...dimension) dimension {
	var all dimension
	for i, d := range dimensions {
		for j, choose := range d {
			if i > 0 && j == 0 {
				continue
			}
			all = append(all, func(m *moment) {
				for _, other := range dimensions {
					other[0](m)
				}
				choose(m)
			})
		}
	}
	return all
}

func near() dimension       { return either(func(m *moment, is bool) { m.Seen.MayMarkPrepared = is }) }
func local() dimension      { return either(func(m *moment, is bool) { m.State.NodeBound = is }) }
func consumes() dimension   { return either(func(m *moment, is bool) { m.State.OwnsSnapshot = is }) }
func foreigners() dimension { return either(func(m *moment, is bool) { m.State.Foreign = is }) }
func remains() dimension    { return either(func(m *moment, is bool) { m.Seen.HasLeftovers = is }) }
