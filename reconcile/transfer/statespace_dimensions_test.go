package transfer

import "time"

// activity is whether the mover reported anything recently, and whether a stall timeout is set.
func activity() dimension {
	at := func(ago, timeout time.Duration) choice {
		return func(m *situation) { m.Observed.ActiveAt, m.Limits.StallTimeout = now().Add(-ago), timeout }
	}
	timeout := DefaultLimits().StallTimeout
	return dimension{at(timeout-tick, timeout), at(timeout, timeout), at(timeout, 0)}
}

func finalizer() dimension { return either(func(m *situation, is bool) { m.State.Finalizer = is }) }
func eligible() dimension {
	return dimension{
		func(*situation) {},
		func(m *situation) { m.Observed.Eligible = true },
		func(m *situation) { m.Observed.Unbounded = true },
		func(m *situation) { m.Observed.SourceGone = true },
	}
}

func admitted() dimension { return either(func(m *situation, is bool) { m.Observed.Admitted = is }) }
func slot() dimension {
	return dimension{
		func(*situation) {},
		func(m *situation) { m.Observed.SlotIn = tick },
		func(m *situation) { m.Observed.HasSlot = true },
	}
}
func started() dimension { return either(func(m *situation, is bool) { m.Observed.Started = is }) }
func noSource() dimension {
	return dimension{
		func(*situation) {},
		func(m *situation) { m.Observed.SourceGone = true },
		func(m *situation) { m.Observed.PodResumed = "its pod resumed" },
	}
}

func unsupported() dimension {
	return oneOf(func(m *situation, why string) { m.State.UnsupportedReason = why }, "", "uploader is not supported")
}

func diagnosis() dimension {
	return oneOf(func(m *situation, why string) { m.Observed.Diagnosis = why }, "", "quota exceeded")
}

// alternatives combines dimensions that each decide alone: every choice of one, with the others at their first.
func alternatives(dimensions ...dimension) dimension {
	var all dimension
	for i, d := range dimensions {
		for j, choose := range d {
			if i > 0 && j == 0 {
				continue
			}
			all = append(all, func(m *situation) {
				for _, other := range dimensions {
					other[0](m)
				}
				choose(m)
			})
		}
	}
	return all
}

func mayMarkPrepared() dimension {
	return either(func(m *situation, is bool) { m.Observed.MayMarkPrepared = is })
}
func nodeBound() dimension { return either(func(m *situation, is bool) { m.State.NodeBound = is }) }
func ownsSnapshot() dimension {
	return either(func(m *situation, is bool) { m.State.OwnsSnapshot = is })
}
func isForeign() dimension { return either(func(m *situation, is bool) { m.State.Foreign = is }) }
func leftovers() dimension {
	return either(func(m *situation, is bool) { m.Observed.HasLeftovers = is })
}
