package sim

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// Faults after which an agent continues what another one began, with a cache that is late.
const (
	stallCache    = "a watch stalls"
	stopVolumes   = "the controllers of volumes and snapshots stop"
	stopAgent     = "an agent is stopped"
	killRebinder  = "the agent of a rebind is killed"
	overlapRebind = "a second agent starts on the node of a restore"
)

// drawTakeover makes one cache late in one of four schedules, and another agent takes over meanwhile. It draws from a
// stream of its own. The pick of a fault of a rebind is odd: see rebinds.
func drawTakeover(plan *Plan) {
	const oneIn, first, steps, apart, picks = 4, 20, 400, 60, 1000
	random := rand.New(rand.NewPCG(plan.Seed, takeoverStream))
	if random.IntN(oneIn) > 0 {
		return
	}
	at := first + random.IntN(steps)
	add := func(what string, pick int) {
		plan.Faults = append(plan.Faults, Fault{Step: at, What: what, Pick: pick})
		at += random.IntN(apart)
	}
	const stages = 6 // see rebinds: 3 stages, each with an odd pick
	ofStage := func(stage int) int { return random.IntN(picks/stages)*stages + 2*stage + 1 }
	rebinds := slices.ContainsFunc(plan.Work, func(w Work) bool { return w.Kind == Download })
	switch what := random.IntN(6); {
	case what == 0 && rebinds:
		at = first
		add(stallCache, ofStage(0))
		add(stopVolumes, ofStage(0))
		add(killRebinder, ofStage(1))
	case what == 1 && rebinds:
		at = first
		add(overlapRebind, random.IntN(picks))
		add(stallCache, ofStage(0))
	case what == 2:
		add(stopAgent, random.IntN(picks))
	default:
		add(stallCache, 2*random.IntN(picks/2))
		then := []string{stopAgent, killAgent, cutAgent, killCoordinator, deleteMover, stopVolumes, cancel, overlapAgents}
		add(then[random.IntN(len(then))], 2*random.IntN(picks/2)+random.IntN(2))
		add(then[random.IntN(len(then))], 2*random.IntN(picks/2)+random.IntN(2))
	}
	slices.SortStableFunc(plan.Faults, func(a, b Fault) int { return a.Step - b.Step })
}

// takeOver applies a fault of drawTakeover or a stall of many watches, and reports whether there was a victim.
func (s *Simulation) takeOver(fault Fault) bool {
	switch fault.What {
	case stallWatches:
		return s.stall(fault)
	case stopVolumes:
		if !s.rebinds(fault.Pick) {
			return false
		}
		s.lag.volumes = stallEnd(fault.Pick)
		return true
	case lateProtection, cancelHandover:
		return s.interrupt(fault)
	case stopAgent:
		return s.stopOne(fault.Pick)
	case killRebinder:
		p := s.rebinder()
		if p == nil || !s.rebinds(fault.Pick) {
			return false
		}
		s.kill(p)
		s.setAgent(p, corev1.ConditionFalse)
		return true
	case overlapRebind:
		p := s.rebinder()
		return p != nil && s.overlap(p.node)
	default:
		return s.stallOne(fault.Pick)
	}
}

// rebinder returns the agent of the node of the first DataDownload InProgress, or nil if it does not act.
func (s *Simulation) rebinder() *process {
	for _, transfer := range s.transfers() {
		if v := viewOf(transfer.Object); transfer.GetKind() == string(Download) && v.phase == "InProgress" {
			if p := s.last(v.node); p != nil && p.alive() && !p.cut {
				return p
			}
		}
	}
	return nil
}

// stallOne delays the events of one watch. In every second schedule, the watch expires then. During a rebind, it delays
// the watches of claims of all agents but the one that rebinds, or of that one if another runs on its node.
func (s *Simulation) stallOne(pick int) bool {
	stall := stalled{stallEnd(pick), pick/2%2 == 0}
	watches := s.API.Watches()
	if pick%2 == 0 {
		if len(watches) == 0 {
			return false
		}
		s.lag.watches[watches[pick/2%len(watches)]] = stall
		return true
	}
	p := s.rebinder()
	if p == nil || !s.rebinds(pick) {
		return false
	}
	double := slices.ContainsFunc(s.processes, func(other *process) bool { return other.leaving && other.alive() && other.node == p.node })
	for _, w := range watches {
		if strings.HasPrefix(w.Name, "persistentvolumeclaims") && (w.Client == p.name) == double {
			s.lag.watches[w] = stall
		}
	}
	return true
}

// stopOne stops an agent as the update of a DaemonSet does: by SIGTERM. Its requests still get through.
func (s *Simulation) stopOne(pick int) bool {
	agents := s.connected()
	if len(agents) == 0 {
		return false
	}
	p := agents[pick%len(agents)]
	if coordinator := s.coordinator(); pick%2 == 0 && coordinator != nil {
		p = coordinator
	}
	if p.stopping || p.leaving || s.last(p.node) != p {
		return false
	}
	p.stopping = true
	p.cancel()
	return true
}

// replace replaces the pod of an agent that was stopped.
func (s *Simulation) replace(p *process) {
	if pod := s.API.Find(podUID(p)); pod != nil {
		s.remove(pod)
	}
	s.deploy(p.node)
}

// finalized returns the transfer whose finalizer a request is about to change, or nil.
func (s *Simulation) finalized(p *parked) *apiserver.Object {
	if p.request.Method != http.MethodPatch {
		return nil
	}
	for _, kind := range Kinds() {
		if path.Base(path.Dir(p.request.Path)) != plural(kind) {
			continue
		}
		if object := s.API.Get(plural(kind), veleroNamespace, path.Base(p.request.Path)); object != nil && len(object.GetFinalizers()) > 0 {
			return object
		}
	}
	return nil
}

// checkWrite checks a write of an agent that the API server has just applied.
func (s *Simulation) checkWrite(p *parked, reply apiserver.Reply, transfer *apiserver.Object) {
	if reply.Code >= http.StatusMultipleChoices || p.request.Method == http.MethodGet || len(p.request.Query["dryRun"]) > 0 || strings.Contains(p.request.Path, "/events") {
		return
	}
	switch {
	case p.from.resigned && !p.late && !strings.Contains(p.request.Path, "/leases"):
		s.promises.fail("%s writes %s after it has released the Lease", p.from.name, p.name)
	case p.from.stopping && strings.HasSuffix(p.request.Path, "/leases/lateen-coordinator"):
		lease := apiserver.As[coordinationv1.Lease](s.API.Get("leases", veleroNamespace, "lateen-coordinator"))
		p.from.resigned = ptr.Deref(lease.Spec.HolderIdentity, "") == ""
	}
	if transfer == nil {
		return
	}
	if now := s.API.Find(transfer.GetUID()); now == nil || len(now.GetFinalizers()) == 0 {
		s.checkLeft(transfer)
	}
}

// checkLeft checks that nothing old is left of a transfer that loses its finalizer: the sweep of orphans would find it
// only later. An agent that is cut off, or overlaps with another, may create an object at the same time.
func (s *Simulation) checkLeft(transfer *apiserver.Object) {
	const old = 2 * time.Minute
	for _, plural := range []string{"pods", "persistentvolumeclaims"} {
		for _, object := range s.API.List(plural) {
			if object.GetLabels()[api.LabelMover] == string(transfer.GetUID()) && object.GetDeletionTimestamp() == nil &&
				s.API.Now().Sub(object.GetCreationTimestamp().Time) > old {
				s.promises.fail("%s %s is left when %s loses its finalizer", plural, object.Key(), transfer.Key())
			}
		}
	}
}

// answered checks a request of which an agent has the answer: it deletes no job again.
func (p *promises) answered(of *parked, reply apiserver.Reply) {
	if of.request.Method != http.MethodDelete || !strings.Contains(of.request.Path, "/jobs/") {
		return
	}
	once := fmt.Sprintf("%s: %s", of.from.name, of.name)
	if p.deletions[once] {
		p.fail("%s a second time", once)
	}
	p.deletions[once] = reply.Code < http.StatusMultipleChoices
}
