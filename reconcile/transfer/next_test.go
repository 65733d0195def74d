package transfer

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/objects"
)

// TestNextEverywhere verifies every rule of the protocol in every possible situation.
func TestNextEverywhere(t *testing.T) {
	all := slices.Concat(ownershipRules(), beginningRules(), cleaningRules(), cancelRules(), moverRules(), restartRules(), endRules(), outcomeRules(), deliveryRules(), stepRules())
	walk(func(m *situation) {
		for _, r := range all {
			if !r.holds(m) {
				t.Fatalf("violated: %s\n%s", r.name, m)
			}
		}
	})
}

func (s *situation) String() string {
	result := "none"
	if s.Observed.Result != nil {
		result = fmt.Sprintf("%+v", *s.Observed.Result)
	}
	return fmt.Sprintf("state  %+v\nobserved %+v\nresult %s\nstep   %+v", s.State, s.Observed, result, s.Step)
}

var update = flag.Bool("update", false, "write the diagram into the documentation")

// edges walks every situation and collects the reasons of the writes of Next, by the phases before and after. An expose or
// a rebind that cannot succeed finishes the transfer inside the effect. Its edge is the one of FailExpose or FailRebind.
func edges() map[[2]Phase]map[string]bool {
	found := map[[2]Phase]map[string]bool{}
	walk(func(m *situation) {
		var step Step
		switch m.Step.Action {
		case Write:
			step = m.Step
		case Expose:
			step = FailExpose(m.State, m.Observed, "")
		case AbandonRebind:
			step = FailRebind(m.State, m.Observed, "")
		case Wait, Rebind, DeleteMover, CleanUp:
			return
		}
		pair := [2]Phase{m.State.Phase, step.State.Phase}
		if found[pair] == nil {
			found[pair] = map[string]bool{}
		}
		found[pair][string(step.Reason)] = true
	})
	return found
}

// TestEdgesMatchTheDiagram compares the state diagram of the documentation with the transitions of Next.
func TestEdgesMatchTheDiagram(t *testing.T) {
	const page, begin, end = "../../docs/architecture.md", "```mermaid\nstateDiagram-v2\n", "```"
	have, err := os.ReadFile(page)
	require.NoError(t, err)
	before, rest, begins := strings.Cut(string(have), begin)
	_, after, ends := strings.Cut(rest, end)
	require.True(t, begins && ends, "%s has no state diagram", page)
	var diagram strings.Builder
	found := edges()
	for _, from := range Phases() {
		for _, to := range slices.Sorted(slices.Values(Phases())) {
			if reasons := slices.Sorted(maps.Keys(found[[2]Phase{from, to}])); len(reasons) > 0 {
				fmt.Fprintf(&diagram, "    %s --> %s: %s\n", from, to, strings.Join(reasons, "<br/>"))
			}
		}
	}
	want := before + begin + diagram.String() + end + after
	if *update {
		require.NoError(t, os.WriteFile(page, []byte(want), 0o644))
		return
	}
	require.Equal(t, want, string(have), "run: make pictures")
}

// Values that all situations share.
const (
	here            = "n1"
	elsewhere       = "n2"
	exposureMessage = "message of the exposure"
	tick            = time.Nanosecond
)

func now() time.Time { return time.Unix(1_800_000_000, 0) }

// unknownPhase is a phase that this version does not know.
func unknownPhase() Phase { return "Quiescing" }

// situation is a state, what is observed in it, and the step that follows.
type situation struct {
	State    State
	Observed Observed
	Limits   Limits
	Step     Step
}

// A choice sets one aspect of a situation; a dimension lists its choices.
type (
	choice    func(*situation)
	dimension []choice
)

func oneOf[V any](set func(*situation, V), values ...V) dimension {
	var all dimension
	for _, value := range values {
		all = append(all, func(m *situation) { set(m, value) })
	}
	return all
}

func either(set func(*situation, bool)) dimension { return oneOf(set, false, true) }

// space is the product of all dimensions of a phase. Later dimensions may build on earlier ones.
type space struct {
	phase      Phase
	dimensions []dimension
	size       int
}

// at sets m to the situation with that number.
func (s space) at(number int, m *situation) {
	*m = situation{Limits: DefaultLimits()}
	m.State.Phase, m.State.CreatedAt = s.phase, now().Add(-24*time.Hour)
	m.Observed.Now, m.Observed.ThisNode, m.Observed.ResultError, m.Observed.WaitingFor = now(), here, "invalid JSON", "a claim that does not exist"
	m.Observed.Home = "home"
	for _, d := range s.dimensions {
		d[number%len(d)](m)
		number /= len(d)
	}
}

// spaces returns all situations, by phase.
func spaces() []space {
	phases := append(Phases(), unknownPhase())
	all := make([]space, 0, len(phases))
	owner := oneOf(func(m *situation, is [2]bool) { m.Observed.Exposes, m.Observed.OwnsMover = is[0], is[1] }, [2]bool{}, [2]bool{false, true}, [2]bool{true}, [2]bool{true, true})
	for _, phase := range phases {
		dimensions := append([]dimension{movers(phase), stopRequests(phase), finalizer(), owner}, phaseDimensions(phase)...)
		one := space{phase: phase, dimensions: dimensions, size: 1}
		for _, d := range dimensions {
			one.size *= len(d)
		}
		all = append(all, one)
	}
	return all
}

// walk calls visit for every situation, with the step that follows.
func walk(visit func(*situation)) {
	var m situation
	for _, s := range spaces() {
		for number := range s.size {
			s.at(number, &m)
			m.Step = Next(m.State, m.Observed, m.Limits)
			visit(&m)
		}
	}
}

// phaseDimensions returns the dimensions that a phase has in addition to the common ones, and the times of its earlier phases.
func phaseDimensions(phase Phase) []dimension {
	begun := oneOf(func(m *situation, ago time.Duration) {
		m.State.AcceptedAt, m.State.StartedAt, m.State.Node = now().Add(-2*ago), now().Add(-ago), here
	}, time.Second)
	switch phase {
	case New:
		return []dimension{eligible(), admitted(), unsupported(), nodeBound(), ownsSnapshot(), either(func(m *situation, is bool) { m.State.Foreign = is }), ages(func(m *situation, at time.Time) { m.Observed.WaitsSince = at })}
	case Accepted:
		return []dimension{sinceAccepted(), alternatives(noSource(), diagnosis(), slot()), either(func(m *situation, is bool) { m.Observed.MayMarkPrepared = is }), nodeBound()}
	case Prepared:
		return []dimension{{func(m *situation) { m.State.Node = here }}, progress(), noSource(), ages(func(m *situation, at time.Time) { m.State.AcceptedAt = at }), slot(), nodeBound()}
	case InProgress:
		return []dimension{begun, alternatives(progress(), delivery()), alternatives(activity(), noSource()), nodeBound()}
	case Canceling:
		return []dimension{begun, alternatives(progress(), delivery()), started(), noSource()}
	case Completed, Failed, Canceled:
		return []dimension{begun, progress(), leftovers(), ownsSnapshot()}
	}
	return []dimension{begun}
}

// movers combines the restarts with the exposures that are possible after so many. Before Accepted there are no
// restarts. The node counts until it is recorded.
func movers(phase Phase) dimension {
	var all dimension
	restarted, nodes := []int{0, 1, DefaultLimits().Retries}, []string{here, elsewhere}
	switch phase {
	case New:
		restarted = restarted[:1]
	case Prepared, InProgress, Canceling, Completed, Failed, Canceled:
		nodes = nodes[:1]
	case Accepted:
	}
	for _, restarts := range restarted {
		for _, exposure := range exposures(restarts, nodes) {
			for _, result := range results(exposure) {
				for _, nodeState := range nodeStates(phase, restarts, exposure) {
					all = append(all, func(m *situation) {
						m.State.Restarts, m.Observed.Exposure, m.Observed.Result = restarts, exposure, result
						if restarts > 0 {
							m.State.Message, m.State.Exposer = "reason of the previous loss", elsewhere
						}
						nodeState(m)
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
				observed := objects.Exposure{Condition: condition, Node: node, Attempt: attempt, Message: exposureMessage}
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

// nodeStates are the states of the node of a mover: nothing, the node is lost, or its end is not confirmed in time. This agent may know why
// it deleted a mover that is absent or deleting. An Accepted transfer without a restart may also have been accepted by an agent of Velero.
func nodeStates(phase Phase, restarts int, exposure objects.Exposure) []choice {
	all := reachableNodeStates(phase, exposure)
	if phase == Accepted && restarts == 0 {
		for _, nodeState := range all {
			all = append(all, func(m *situation) { nodeState(m); m.State.Exposer = elsewhere })
		}
	}
	return all
}

func reachableNodeStates(phase Phase, exposure objects.Exposure) []choice {
	deleting := func(ago time.Duration) choice { return func(m *situation) { m.Observed.DeletingAt = now().Add(-ago) } }
	nodeLost := func(m *situation) { m.Observed.NodeLost = true }
	known := func(nodeState choice) choice {
		return func(m *situation) {
			nodeState(m)
			m.Observed.Loss = Loss{Reason: objects.LostStalled, Message: "reason of this loss"}
		}
	}
	nothing, grace := func(*situation) {}, DefaultLimits().TerminationGrace
	replaceable := phase == Prepared || phase == InProgress
	switch exposure.Condition {
	case objects.Running, objects.Succeeded:
		all := []choice{nothing, nodeLost}
		if replaceable { // the deletion is refused
			all = append(all, known(deleting(grace-tick)), known(deleting(grace)))
		}
		return all
	case objects.Terminating:
		all := []choice{deleting(grace - tick), deleting(grace), nodeLost}
		if replaceable {
			all = append(all, known(deleting(grace)), known(nodeLost))
		}
		return all
	case objects.Lost:
		if replaceable {
			return []choice{nothing, nodeLost, deleting(grace - tick), known(deleting(grace - tick)), known(deleting(grace))}
		}
	case objects.Absent:
		if replaceable || phase == Accepted {
			return []choice{nothing, known(nothing)}
		}
	case objects.Pending, objects.Unrunnable, objects.Failed:
	}
	return []choice{nothing}
}

// results are the possible results of a mover; only one that succeeded has a result.
func results(exposure objects.Exposure) []*Outcome {
	if exposure.Condition != objects.Succeeded {
		return []*Outcome{nil}
	}
	snapshot := &Outcome{SnapshotID: "snap", Path: "/uid", TotalBytes: 100, IncrementalBytes: 10}
	return []*Outcome{nil, snapshot, {Path: "/uid", Note: "volume was empty"}}
}

// stopRequests are the ways to stop a transfer: none, a cancel, a deletion, or both. In phases with a grace period the
// time since the cancel varies too.
func stopRequests(phase Phase) dimension {
	all := dimension{func(*situation) {}}
	grace := []time.Duration{DefaultLimits().CancelGrace - tick}
	if phase.HasStarted() {
		grace = append(grace, DefaultLimits().CancelGrace)
	}
	for _, how := range [][2]bool{{true, false}, {false, true}, {true, true}} {
		for _, ago := range grace {
			all = append(all, func(m *situation) {
				m.State.Cancel, m.State.Deleting = how[0], how[1]
				m.Observed.CanceledAt = now().Add(-ago)
			})
		}
	}
	return all
}

// ages are the times just before the prepare timeout and exactly at it.
func ages(set func(*situation, time.Time)) dimension {
	timeout := DefaultLimits().PrepareTimeout
	return oneOf(func(m *situation, ago time.Duration) { set(m, now().Add(-ago)) }, timeout-tick, timeout)
}

// sinceAccepted are the times around the end of the restart delay and the prepare timeout.
func sinceAccepted() dimension {
	pause := oneOf(func(m *situation, left time.Duration) {
		m.State.AcceptedAt = now().Add(left - pauseBefore(m.State.Restarts, m.Limits))
	}, tick, 0)
	return append(pause, ages(func(m *situation, at time.Time) { m.State.AcceptedAt = at })...)
}

// pauseBefore is the time from giving up a mover to creating the next: 10 s, doubled for each further one. A mover still has the most
// of the prepare timeout.
func pauseBefore(restarts int, limits Limits) time.Duration {
	pause := limits.RestartDelay
	for range restarts - 1 {
		pause *= 2
	}
	return min(pause, limits.PrepareTimeout/4)
}

func TestATransferOfALostNodeDoesNotWaitForAMover(t *testing.T) {
	evicted := State{Phase: Accepted, NodeBound: true, Node: "n2", AcceptedAt: now(), Restarts: 1, Message: "mover was evicted"}
	step := Next(evicted, Observed{Ownership: Ownership{OwnsMover: true, NodeLost: true}, Now: now(), Home: "n2"}, DefaultLimits())
	require.Equal(t, ReasonMoverLost, step.Reason)
	require.Equal(t, "mover was evicted; node n2 is not Ready or does not exist", step.State.Message)
}

func TestEveryRestartHasTimeToPrepare(t *testing.T) {
	for restarts := range 100 {
		require.Equal(t, pauseBefore(min(restarts, 20), DefaultLimits()), restartDelay(restarts, DefaultLimits()))
	}
}

// progress is the last report of the mover: none, a new one, one from before its start, or the known one.
func progress() dimension {
	reported := func(m *situation, p Progress, at time.Time) {
		m.State.Progress = Progress{Total: 100, Done: 40}
		m.Observed.Report = Report{p, at}
	}
	return dimension{
		func(m *situation) { reported(m, Progress{}, time.Time{}) },
		func(m *situation) { reported(m, Progress{Total: 100, Done: 60}, m.State.StartedAt) },
		func(m *situation) { reported(m, Progress{Total: 100, Done: 90}, m.State.StartedAt.Add(-tick)) },
		func(m *situation) { reported(m, m.State.Progress, m.State.StartedAt.Add(time.Minute)) },
	}
}

func TestProgressIsWrittenWhileTheMoverWorks(t *testing.T) {
	limits := DefaultLimits()
	begun := now().Add(-limits.FirstProgress)
	for sentence, test := range map[string]struct {
		change func(s *State, report *Report)
		waits  time.Duration
	}{
		"of another data mover":             {change: func(s *State, _ *Report) { s.Foreign = true }},
		"before its start":                  {change: func(s *State, _ *Report) { s.Phase = Prepared }},
		"after a cancel":                    {change: func(s *State, _ *Report) { s.Cancel = true }},
		"while the mover stops":             {change: func(s *State, _ *Report) { s.Phase = Canceling }},
		"of a resource that is deleted":     {change: func(s *State, _ *Report) { s.Deleting = true }},
		"after the mover's success":         {change: func(s *State, _ *Report) { s.MoverSucceededAt = now() }},
		"after its end":                     {change: func(s *State, _ *Report) { s.Phase = Completed }},
		"of an earlier mover":               {change: func(_ *State, report *Report) { report.At = begun.Add(-time.Second) }},
		"that is written":                   {change: func(s *State, report *Report) { s.Progress = report.Progress }},
		"of a mover that has just started":  {change: func(s *State, report *Report) { s.StartedAt, report.At = begun.Add(tick), now() }, waits: tick},
		"of the second in which it started": {change: func(*State, *Report) {}},
	} {
		t.Run(sentence, func(t *testing.T) {
			s := State{Phase: InProgress, StartedAt: begun, Progress: Progress{Total: 100, Done: 40}}
			report := Report{Progress{Total: 100, Done: 60}, begun}
			test.change(&s, &report)
			written := s
			written.Progress = report.Progress
			if sentence == "of the second in which it started" {
				require.Equal(t, Step{Action: Write, State: written, Reason: ReasonProgress}, NextProgress(s, report, now(), limits))
			} else {
				require.Equal(t, Step{After: test.waits}, NextProgress(s, report, now(), limits))
			}
		})
	}
}

// activity is whether the mover reported anything recently, and whether a stall timeout is set.
func activity() dimension {
	at := func(ago, timeout time.Duration) choice {
		return func(m *situation) { m.Observed.ActiveAt, m.Limits.StallTimeout = now().Add(-ago), timeout }
	}
	timeout := DefaultLimits().StallTimeout
	noRetry := func(m *situation) { m.Limits.Retries = 0; at(timeout, timeout)(m) }
	return dimension{at(timeout-tick, timeout), at(timeout, timeout), at(timeout, 0), noRetry}
}

func finalizer() dimension { return either(func(m *situation, is bool) { m.State.Finalizer = is }) }
func eligible() dimension {
	return dimension{
		func(*situation) {},
		func(m *situation) { m.Observed.Eligible = true },
		func(m *situation) { m.Observed.Unbounded = true },
		func(m *situation) { m.Observed.SourceGone = true },
		func(m *situation) { m.Observed.Unbounded, m.Observed.PodResumed = true, "its pod resumed" },
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

func nodeBound() dimension { return either(func(m *situation, is bool) { m.State.NodeBound = is }) }
func ownsSnapshot() dimension {
	return either(func(m *situation, is bool) { m.State.OwnsSnapshot = is })
}
func leftovers() dimension {
	return either(func(m *situation, is bool) { m.Observed.HasLeftovers = is })
}
