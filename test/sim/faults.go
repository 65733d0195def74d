package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// Fault is one thing that goes wrong at a step of the schedule.
type Fault struct {
	Step int
	What string
	Pick int // which of the possible victims
}

func (f Fault) String() string { return fmt.Sprintf("%s@%d", f.What, f.Step) }

// Faults of single requests: the next one of an agent that is no Kubernetes Event. client-go repeats an Event after a
// random delay that no seed reaches.
const (
	loseRequest = "a request is lost"
	loseAnswer  = "an answer is lost"
	conflict    = "a request fails with 409"
	tooMany     = "a request fails with 429"
	internal    = "a request fails with 500"
	unavailable = "a request fails with 503"
	refusePod   = "a pod is refused with 403"
)

// Faults of agents, nodes, movers and of what people do.
const (
	killAgent   = "an agent is killed"
	cutAgent    = "an agent is cut off"
	breakWatch  = "a watch breaks"
	expireWatch = "a watch expires"
	deleteMover = "a mover pod is deleted"
	preempt     = "a mover is preempted"
	failMover   = "a mover fails"
	killMover   = "a mover runs out of memory"
	hangMover   = "a mover hangs"
	silenceNode = "a node is silent"
	failDriver  = "the driver fails"
	cancel      = "a transfer is canceled"
	deleteIt    = "a transfer is deleted"

	drainNode        = "a node is drained"
	deleteOfNode     = "a node is deleted"
	overlapAgents    = "a second agent starts on a node"
	oldLists         = "an agent is killed, and the next lists are old"
	deleteClaim      = "a claim is deleted"
	deleteSnapshot   = "a snapshot is deleted"
	deleteRepository = "a repository is deleted"
	deleteJob        = "a job is deleted"
	deleteNamespace  = "the namespace of the applications is deleted"
	changeConfig     = "the ConfigMap is edited and the agents restart"
	changeClass      = "the storage class is edited"
	deleteClass      = "the storage class is deleted"
	deletePriority   = "the priority class is deleted"
	refuseJobPods    = "the pods of jobs are refused"
)

// benign returns the faults after which every transfer still has to be Completed.
func benign() []string {
	return []string{loseRequest, loseAnswer, conflict, tooMany, internal, unavailable, killAgent, cutAgent, breakWatch, expireWatch, deleteMover, preempt,
		drainNode, overlapAgents, oldLists, deleteRepository, deleteJob, changeConfig, changeClass, refuseJobPods}
}

// harmful returns the faults that may fail or cancel a transfer.
func harmful() []string {
	return []string{refusePod, failMover, killMover, hangMover, silenceNode, failDriver, cancel, deleteIt,
		deleteOfNode, deleteClaim, deleteSnapshot, deleteNamespace}
}

// drawFaults chooses which faults are possible at all, and when each happens.
func drawFaults(random *rand.Rand) (drawn []Fault) {
	all := benign()
	if random.IntN(2) == 0 {
		all = append(all, harmful()...)
	}
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	possible := all[:1+random.IntN(4)]
	const most, steps = 5, 400
	for range random.IntN(most) {
		drawn = append(drawn, Fault{Step: 20 + random.IntN(steps), What: possible[random.IntN(len(possible))], Pick: random.IntN(1000)})
	}
	return drawn
}

// faults holds what is wrong now.
type faults struct {
	due      []Fault
	requests []Fault            // wait for the next request
	silent   map[string]bool    // nodes whose kubelets do nothing
	hung     map[types.UID]bool // pods whose movers do nothing
	driver   int                // 1 while the driver fails
	met      []string
	deleted  map[types.UID]bool // by people
	// unprotected transfers were deleted before an agent could give them a finalizer: nothing cleans up after them.
	unprotected map[types.UID]bool
	slots       int            // the highest limit so far
	overlaps    map[string]int // second agents so far, by node
	lasts       time.Time      // nothing heals before
	since       time.Time      // of the last fault
	refused     refusal        // by the policy in force
	ever        string         // the node that is silent for ever
	uncounted   bool           // a policy has refused to record that jobs are counted, so each coordinator counts them
}

// strike applies the faults that are due. One without a victim waits for it, until every transfer has ended.
func (s *Simulation) strike() {
	f := s.faults
	f.due = slices.DeleteFunc(f.due, func(fault Fault) bool {
		if fault.Step > s.step {
			return false
		}
		if !s.apply(fault) {
			return s.unsettled() == "" && s.asked() && s.unmaintained() == ""
		}
		f.met = append(f.met, fault.What)
		f.since = time.Now()
		if until, late := s.isLate(); late {
			f.since = until
		}
		f.last(fault)
		s.trace.note(fmt.Sprintf("%5d ! %s", s.step, fault.What))
		return true
	})
}

// apply applies a fault, and reports whether there was a victim.
func (s *Simulation) apply(fault Fault) bool {
	switch fault.What {
	case killAgent, cutAgent, oldLists, killCoordinator, cutCoordinator:
		return s.harmAgent(fault)
	case stallWatches, stallCache, stopVolumes, stopAgent, killRebinder, overlapRebind, lateProtection, cancelHandover:
		return s.takeOver(fault)
	case killAgents:
		return s.rebinds(fault.Pick) && s.killAll()
	case breakWatch, expireWatch:
		watches := s.API.Watches()
		if len(watches) == 0 {
			return false
		}
		w := watches[fault.Pick%len(watches)]
		if fault.What == expireWatch {
			w.Expire()
		} else {
			w.Close()
		}
		return true
	case silenceNode, drainNode, deleteOfNode, overlapAgents:
		return s.harmNode(fault.What, s.nodes[fault.Pick%len(s.nodes)])
	case deleteClaim, deleteSnapshot, deleteRepository, deleteJob, deleteNamespace:
		return s.deleteSomething(fault)
	case changeConfig:
		s.editConfig()
		return true
	case refuseJobPods:
		s.NoPods = true
		return true
	case refuseWrites:
		return s.refuse(fault.Pick)
	case silenceEver:
		return s.silenceEver(fault.Pick)
	case changeClass:
		return s.editClass()
	case deleteClass:
		return s.deleteGlobal("storageclasses", className)
	case deletePriority:
		return s.deleteGlobal("priorityclasses", priorityName)
	case failDriver:
		s.faults.driver = 1
		return true
	case cancel, deleteIt:
		return s.harmTransfer(fault)
	case deleteMover, preempt, failMover, killMover, hangMover:
		return s.harmMover(fault)
	default:
		s.faults.requests = append(s.faults.requests, fault)
		return true
	}
}

// last decides how long nothing heals. Half of the faults can heal at once. Only harmful ones may last longer than a
// transfer takes to be prepared.
func (f *faults) last(fault Fault) {
	longest := 7 // minutes
	if fault.What == silenceNode || fault.What == deleteOfNode || fault.What == deleteClass || fault.What == killAgents || fault.What == cutAgent {
		longest = 25
	}
	until := time.Now().Add(time.Duration(fault.Pick%longest) * time.Minute)
	if (fault.Pick%2 == 0 || fault.What == killAgents || fault.What == killRebinder) && until.After(f.lasts) {
		f.lasts = until
	}
}

// maxLag is how many revisions the lists of an API server may be behind that restarted.
const maxLag = 60

func (s *Simulation) harmNode(what, node string) bool {
	switch what {
	case drainNode:
		return s.drain(node)
	case deleteOfNode:
		return s.deleteNode(node)
	case overlapAgents:
		return s.overlap(node)
	}
	if s.API.Get("nodes", "", node) == nil {
		return false
	}
	s.silence(node)
	return true
}

func (s *Simulation) harmAgent(fault Fault) bool {
	var alive []*process
	for _, p := range s.processes {
		if p.alive() {
			alive = append(alive, p)
		}
	}
	if len(alive) == 0 {
		return false
	}
	p := alive[fault.Pick%len(alive)]
	switch fault.What {
	case oldLists:
		s.API.Lag = int64(fault.Pick % maxLag)
	case killCoordinator, cutCoordinator:
		if p = s.coordinator(); p == nil || !s.rebinds(fault.Pick) {
			return false
		}
	}
	if fault.What != cutAgent && fault.What != cutCoordinator {
		s.kill(p)
		s.setAgent(p, corev1.ConditionFalse)
		return true
	}
	p.cut = true
	for _, w := range s.watchesOf(p) {
		w.Close()
	}
	return true
}

func (s *Simulation) harmMover(fault Fault) bool {
	var running []*mover
	for _, m := range s.running() {
		if m.begun {
			running = append(running, m)
		}
	}
	if len(running) == 0 {
		return false
	}
	m := running[fault.Pick%len(running)]
	pod := s.API.Get("pods", m.pod.Namespace, m.pod.Name)
	if pod == nil || pod.GetUID() != m.pod.UID || pod.GetDeletionTimestamp() != nil {
		return true // another fault hit it
	}
	switch fault.What {
	case preempt:
		s.Patch("pods", pod, map[string]any{"status": map[string]any{"conditions": append(s.conditions(corev1.ConditionTrue), corev1.PodCondition{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler,
		})}})
		s.Delete("pods", pod)
	case deleteMover:
		s.Delete("pods", pod)
	case failMover:
		m.result = &result{code: 1, message: "Failed to run data path service: injected"}
	case killMover:
		m.result = &result{code: 137, reason: "OOMKilled"}
	default:
		s.faults.hung[m.pod.UID] = true
	}
	return true
}

// Faults of a hand-over: a transfer ends after its content was created and before the snapshot-controller has protected it.
const (
	lateProtection = "the snapshot-controller protects a content late"
	cancelHandover = "the transfer of a hand-over is canceled"
)

// drawHandover interrupts a hand-over in one of eight schedules with an upload. It draws from a stream of its own.
func drawHandover(plan *Plan) {
	const oneIn, first, picks = 8, 20, 1000
	random := rand.New(rand.NewPCG(plan.Seed, handoverStream))
	uploads := slices.ContainsFunc(plan.Work, func(w Work) bool { return w.Kind == Upload })
	if random.IntN(oneIn) > 0 || !uploads {
		return
	}
	for _, what := range []string{lateProtection, cancelHandover} {
		plan.Faults = append(plan.Faults, Fault{Step: first, What: what, Pick: random.IntN(picks)})
	}
}

// interrupt applies a fault of drawHandover, and reports whether there was a hand-over.
func (s *Simulation) interrupt(fault Fault) bool {
	upload := s.handingOver()
	if upload == nil {
		return false
	}
	if fault.What == lateProtection {
		s.lag.protection = stallEnd(fault.Pick)
	} else {
		s.Patch(plural(Upload), upload, map[string]any{"spec": map[string]any{"cancel": true}})
	}
	return true
}

// handingOver returns the DataUpload of a content that is not protected yet, or nil.
func (s *Simulation) handingOver() *apiserver.Object {
	for _, content := range s.API.List("volumesnapshotcontents") {
		upload := s.API.Find(types.UID(content.GetLabels()[api.LabelOwnerUID]))
		if len(content.GetFinalizers()) == 0 && upload != nil && !viewOf(upload).ended() {
			return upload
		}
	}
	return nil
}
