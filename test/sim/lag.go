package sim

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// Faults of a slow API server. All wait on the clock: without them, every event is delivered and every request is
// answered before time passes.
const (
	stallWatches    = "the watches of all agents but one stall"
	delayRequest    = "a write arrives late, and its agent has no answer"
	killCoordinator = "the coordinator is killed"
	cutCoordinator  = "the coordinator is cut off"
	killAgents      = "all agents are killed"
)

// drawLag delays events or writes in one of four schedules, and in most of them another agent takes over meanwhile. It
// draws from a stream of its own.
func drawLag(plan *Plan) {
	const oneIn, first, steps, apart, picks = 4, 20, 400, 60, 1000
	random := rand.New(rand.NewPCG(plan.Seed, lagStream))
	if random.IntN(oneIn) > 0 {
		return
	}
	at := first + random.IntN(steps)
	what := []string{stallWatches, stallWatches, delayRequest}[random.IntN(3)]
	plan.Faults = append(plan.Faults, Fault{Step: at, What: what, Pick: random.IntN(picks)})
	then := []string{killCoordinator, cutCoordinator, killAgents, deleteMover, ""}[random.IntN(5)]
	if then != "" {
		plan.Faults = append(plan.Faults, Fault{Step: at + random.IntN(apart), What: then, Pick: random.IntN(picks)})
	}
}

// lag is what is delayed.
type lag struct {
	watches    map[*apiserver.Watch]stalled
	writes     []lateWrite
	overtaken  int       // writes of a coordinator that arrived when it was none any more
	volumes    time.Time // until when no controller of volumes or snapshots acts
	protection time.Time // until when no content gets its finalizer
}

// stalled is how long the events of a watch are delayed. One that expires then never gets them: its client lists again.
type stalled struct {
	until   time.Time
	expires bool
}

type lateWrite struct {
	*parked

	at          time.Time
	coordinated bool // its agent was the coordinator when it sent it
}

// stall delays the events of all watches for up to 3 minutes, but for those of one agent: often that of the coordinator.
func (s *Simulation) stall(fault Fault) bool {
	agents := s.connected()
	if len(agents) == 0 {
		return false
	}
	spared := agents[fault.Pick%len(agents)]
	if coordinator := s.coordinator(); fault.Pick%2 == 0 && coordinator != nil {
		spared = coordinator
	}
	for _, w := range s.API.Watches() {
		if w.Client != spared.name {
			s.lag.watches[w] = stalled{until: stallEnd(fault.Pick)}
		}
	}
	return true
}

// stallEnd returns when a delay ends that begins now: within 3 minutes.
func stallEnd(pick int) time.Time {
	const longest = 180
	return time.Now().Add(time.Duration(1+pick%longest) * time.Second)
}

// stalled reports whether the events of a watch are delayed.
func (s *Simulation) stalled(w *apiserver.Watch) bool {
	stall := s.lag.watches[w]
	return stall.expires || time.Now().Before(stall.until)
}

// late returns the delayed watches that expire now, and the writes that arrive now.
func (s *Simulation) late() (all []choice) {
	for _, w := range s.API.Watches() {
		if stall := s.lag.watches[w]; stall.expires && !time.Now().Before(stall.until) {
			all = append(all, choice{w.Client + ": the late watch of " + w.Name + " expires", often, func() {
				delete(s.lag.watches, w)
				w.Expire()
			}})
		}
	}
	for i, write := range s.lag.writes {
		if !time.Now().Before(write.at) {
			all = append(all, choice{"late from " + write.from.name + ": " + write.name, often, func() {
				s.lag.writes = slices.Delete(s.lag.writes, i, i+1)
				if write.coordinated && s.coordinator() != write.from { // its successor may have accepted another transfer
					s.lag.overtaken++
				}
				s.handle(write.parked)
			}})
		}
	}
	return all
}

// undisturbed returns how long ago the last fault ended, and the last delay of a watch.
func (s *Simulation) undisturbed() time.Duration {
	since := s.faults.since
	for _, stall := range s.lag.watches {
		since = slices.MaxFunc([]time.Time{since, stall.until}, time.Time.Compare)
	}
	return time.Since(since)
}

// isLate reports whether anything is delayed, and until when.
func (s *Simulation) isLate() (until time.Time, late bool) {
	sooner := func(at time.Time) {
		if until.IsZero() || at.Before(until) {
			until = at
		}
	}
	for _, stall := range s.lag.watches {
		if time.Now().Before(stall.until) {
			sooner(stall.until)
		}
	}
	for _, until := range []time.Time{s.lag.volumes, s.lag.protection} {
		if time.Now().Before(until) {
			sooner(until)
		}
	}
	for _, write := range s.lag.writes {
		sooner(write.at)
	}
	return until, !until.IsZero()
}

// delay lets a write arrive within a minute, whether its agent lives until then or not.
func (s *Simulation) delay(p *parked, pick int) {
	p.late = true
	s.lag.writes = append(s.lag.writes, lateWrite{p, time.Now().Add(time.Duration(1+pick%60) * time.Second), s.coordinator() == p.from})
}

// rebinds reports whether a rebind is on its way: every second fault of a coordinator waits for one. The others wait for nothing.
func (s *Simulation) rebinds(pick int) bool {
	if pick%2 == 0 || !slices.ContainsFunc(s.plan.Work, func(w Work) bool { return w.Kind == Download }) {
		return true
	}
	for _, object := range s.API.List("persistentvolumes") {
		ref := apiserver.As[corev1.PersistentVolume](object).Spec.ClaimRef
		if object.GetAnnotations()[api.AnnotationReclaimPolicy] == "" || ref == nil {
			continue
		}
		claim := s.API.Get("persistentvolumeclaims", ref.Namespace, ref.Name)
		switch stage := pick / 2 % 3; { // the volume is retained, named for its target, bound to it
		case stage == 0, stage == 1 && ref.Namespace == appNamespace:
			return true
		case ref.Namespace == appNamespace && claim != nil && apiserver.As[corev1.PersistentVolumeClaim](claim).Status.Phase == corev1.ClaimBound:
			return true
		}
	}
	return false
}

// killAll kills all agents. What is left heals after up to 25 minutes.
func (s *Simulation) killAll() bool {
	for _, p := range s.connected() {
		s.kill(p)
		s.setAgent(p, corev1.ConditionFalse)
	}
	return true
}

// connected returns the agents that reach the API server.
func (s *Simulation) connected() (all []*process) {
	for _, p := range s.processes {
		if p.alive() && !p.cut {
			all = append(all, p)
		}
	}
	return all
}

// coordinator returns the agent that holds the Lease, or nil if it does not reach the API server.
func (s *Simulation) coordinator() *process {
	lease := s.API.Get("leases", veleroNamespace, "lateen-coordinator")
	if lease == nil {
		return nil
	}
	holder := ptr.Deref(apiserver.As[coordinationv1.Lease](lease).Spec.HolderIdentity, "")
	for _, p := range s.connected() {
		if holder == p.node || strings.HasPrefix(holder, p.node+"_") || strings.HasPrefix(holder, p.node+"/") {
			return p
		}
	}
	return nil
}
