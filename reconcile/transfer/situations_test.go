package transfer

import (
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Values that all situations share.
const (
	here      = "n1"
	elsewhere = "n2"
	toldWhy   = "what the exposure says"
	tick      = time.Nanosecond
)

func now() time.Time { return time.Unix(1_800_000_000, 0) }

// newer is a phase that this version does not know.
func newer() Phase { return "Quiescing" }

// moment is a situation and the step taken in it.
type moment struct {
	State  State
	Seen   Observed
	Limits Limits
	Step   Step
}

// decide is Next, or a version of it that is broken on purpose.
type decide func(State, Observed, Limits) Step

// A choice sets one aspect of a situation; a dimension lists its choices.
type (
	choice    func(*moment)
	dimension []choice
)

func oneOf[V any](set func(*moment, V), values ...V) dimension {
	var all dimension
	for _, value := range values {
		all = append(all, func(m *moment) { set(m, value) })
	}
	return all
}

func either(set func(*moment, bool)) dimension { return oneOf(set, false, true) }

// space is the product of all dimensions of a phase. Later dimensions may build on earlier ones.
type space struct {
	phase      Phase
	dimensions []dimension
	size       int
}

func newSpace(phase Phase, dimensions []dimension) space {
	size := 1
	for _, d := range dimensions {
		size *= len(d)
	}
	return space{phase: phase, dimensions: dimensions, size: size}
}

// at sets m to the situation with that number.
func (s space) at(number int, m *moment) {
	*m = moment{Limits: DefaultLimits()}
	m.State.Phase, m.State.CreatedAt = s.phase, now().Add(-24*time.Hour)
	m.Seen.Now, m.Seen.ThisNode, m.Seen.ResultError, m.Seen.WaitingFor = now(), here, "it is garbage", "a claim that does not exist"
	for _, d := range s.dimensions {
		d[number%len(d)](m)
		number /= len(d)
	}
}

// spaces returns all situations, by phase.
func spaces() []space {
	phases := append(Phases(), "", newer())
	all := make([]space, 0, len(phases))
	for _, phase := range phases {
		dimensions := []dimension{movers(phase), asked(phase), finalizer(), owner()}
		all = append(all, newSpace(phase, append(dimensions, only(phase)...)))
	}
	return all
}

// only returns the dimensions that a phase has in addition to the common ones, and the times of its earlier phases.
func only(phase Phase) []dimension {
	begun := oneOf(func(m *moment, ago time.Duration) {
		m.State.AcceptedAt, m.State.StartedAt, m.State.Node = now().Add(-2*ago), now().Add(-ago), here
	}, DefaultLimits().FirstProgress)
	switch phase {
	case "", New:
		return []dimension{eligible(), room(), refusal(), local(), consumes(), foreigners(), ages(func(m *moment, at time.Time) { m.Seen.WaitsSince = at })}
	case Accepted:
		return []dimension{sinceAccepted(), alternatives(noSource(), diagnosis(), slot()), near(), local()}
	case Prepared:
		return []dimension{onNode(), progress(), noSource(), ages(func(m *moment, at time.Time) { m.State.AcceptedAt = at }), alternatives(slot(), replaced()), local()}
	case InProgress:
		return []dimension{begun, alternatives(append(progress(), tooSoon), delivery()), alternatives(activity(), noSource(), replaced(noSource()[1:]...)), local()}
	case Canceling:
		return []dimension{begun, alternatives(progress(), delivery()), heard(), noSource()}
	case Completed, Failed, Canceled:
		return []dimension{begun, progress(), remains(), consumes()}
	}
	return []dimension{begun}
}

func onNode() dimension { return dimension{func(m *moment) { m.State.Node = here }} }

// movers combines the restarts with the exposures that are possible after so many. Before Accepted there are no
// restarts. The node counts until it is recorded.
func movers(phase Phase) dimension {
	var all dimension
	restarted, nodes := []int{0, 1, DefaultLimits().Retries}, []string{here, elsewhere}
	switch phase {
	case "", New:
		restarted = restarted[:1]
	case Prepared, InProgress, Canceling, Completed, Failed, Canceled:
		nodes = nodes[:1]
	case Accepted:
	}
	for _, restarts := range restarted {
		for _, exposure := range exposures(restarts, nodes) {
			for _, result := range results(exposure) {
				for _, fate := range fates(phase, restarts, exposure) {
					all = append(all, func(m *moment) {
						m.State.Restarts, m.Seen.Exposure, m.Seen.Result = restarts, exposure, result
						if restarts > 0 {
							m.State.Message, m.State.Exposer = "why the mover before was lost", elsewhere
						}
						fate(m)
					})
				}
			}
		}
	}
	return all
}

func exposures(restarts int, nodes []string) []objects.Exposure {
	all := []objects.Exposure{{Condition: objects.Absent}}
	for condition := objects.Pending; condition <= objects.Failed; condition++ {
		for _, node := range nodes {
			for attempt := max(restarts-1, 0); attempt <= restarts; attempt++ {
				observed := objects.Exposure{Condition: condition, Node: node, Attempt: attempt, Message: toldWhy}
				if condition == objects.Lost {
					observed.Reason = objects.LostEvicted
				}
				all = append(all, observed)
				if condition == objects.Failed {
					observed.Canceled = true
					all = append(all, observed)
				}
			}
		}
	}
	return all
}

// fates are what happens to a mover on its node: nothing, the node is lost, or its end is not confirmed in time. The
// absent mover of an Accepted transfer may have been lost. An Accepted transfer without a restart may also have been
// accepted by an agent of Velero.
func fates(phase Phase, restarts int, exposure objects.Exposure) []choice {
	all := withNode(phase, exposure)
	if phase == Accepted && restarts == 0 {
		for _, fate := range all {
			all = append(all, func(m *moment) { fate(m); m.State.Exposer = elsewhere })
		}
	}
	return all
}

func withNode(phase Phase, exposure objects.Exposure) []choice {
	ending := func(ago time.Duration) choice { return func(m *moment) { m.Seen.DeletingAt = now().Add(-ago) } }
	nodeLost := func(m *moment) { m.Seen.NodeLost = true }
	grace := DefaultLimits().TerminationGrace
	switch exposure.Condition {
	case objects.Running, objects.Succeeded:
		return []choice{func(*moment) {}, nodeLost}
	case objects.Terminating:
		return []choice{ending(grace - tick), ending(grace), nodeLost}
	case objects.Absent:
		if phase == Accepted {
			return []choice{func(*moment) {}, func(m *moment) { m.Seen.Loss = Loss{Reason: objects.LostEvicted, Message: toldWhy} }}
		}
	case objects.Pending, objects.Unrunnable, objects.Lost, objects.Failed:
	}
	return []choice{func(*moment) {}}
}

// results are the possible results of a mover; only one that succeeded has a result.
func results(exposure objects.Exposure) []*Outcome {
	if exposure.Condition != objects.Succeeded {
		return []*Outcome{nil}
	}
	snapshot := &Outcome{SnapshotID: "snap", Path: "/uid", TotalBytes: 100, IncrementalBytes: 10}
	return []*Outcome{nil, snapshot, {Path: "/uid", Note: "volume was empty"}}
}

// asked are the ways to stop a transfer: none, a cancel, a deletion, or both. In phases with a grace period the
// time since the cancel varies too.
func asked(phase Phase) dimension {
	all := dimension{func(*moment) {}}
	grace := []time.Duration{DefaultLimits().CancelGrace - tick}
	if phase.HasStarted() {
		grace = append(grace, DefaultLimits().CancelGrace)
	}
	for _, how := range [][2]bool{{true, false}, {false, true}, {true, true}} {
		for _, ago := range grace {
			all = append(all, func(m *moment) {
				m.State.Cancel, m.State.Deleting = how[0], how[1]
				m.Seen.CanceledAt = now().Add(-ago)
			})
		}
	}
	return all
}

func owner() dimension {
	return oneOf(func(m *moment, is [2]bool) { m.Seen.Exposes, m.Seen.OwnsMover = is[0], is[1] },
		[2]bool{false, false}, [2]bool{false, true}, [2]bool{true, false}, [2]bool{true, true})
}

// ages are the times just before the prepare timeout and exactly at it.
func ages(set func(*moment, time.Time)) dimension {
	timeout := DefaultLimits().PrepareTimeout
	return oneOf(func(m *moment, ago time.Duration) { set(m, now().Add(-ago)) }, timeout-tick, timeout)
}

// sinceAccepted are the times around the end of the restart delay and the prepare timeout.
func sinceAccepted() dimension {
	pause := oneOf(func(m *moment, left time.Duration) {
		m.State.AcceptedAt = now().Add(left - pauseBefore(m.State.Restarts, m.Limits))
	}, tick, 0)
	return append(pause, ages(func(m *moment, at time.Time) { m.State.AcceptedAt = at })...)
}

// pauseBefore is the time from giving up a mover to creating the next: 10 s, doubled for each further one.
func pauseBefore(restarts int, limits Limits) time.Duration {
	pause := limits.RestartDelay
	for range restarts - 1 {
		pause *= 2
	}
	return pause
}

// progress is the last report of the mover: none, a new one, one from before its start, or the known one.
func progress() dimension {
	reported := func(m *moment, p Progress, at time.Time) {
		m.State.Progress = Progress{Total: 100, Done: 40}
		m.Seen.Progress, m.Seen.ProgressAt = p, at
	}
	return dimension{
		func(m *moment) { reported(m, Progress{}, time.Time{}) },
		func(m *moment) { reported(m, Progress{Total: 100, Done: 60}, m.State.StartedAt) },
		func(m *moment) { reported(m, Progress{Total: 100, Done: 90}, m.State.StartedAt.Add(-tick)) },
		func(m *moment) { reported(m, m.State.Progress, m.State.StartedAt.Add(time.Minute)) },
	}
}

// tooSoon is a new report of a mover that has just started: it is not written on its own yet.
func tooSoon(m *moment) {
	m.State.StartedAt = now().Add(tick - DefaultLimits().FirstProgress)
	m.Seen.Progress, m.Seen.ProgressAt = Progress{Total: 100, Done: 60}, now()
}
