package sim

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"path"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
			if object.GetLabels()[api.LabelOwnerUID] == string(transfer.GetUID()) && object.GetDeletionTimestamp() == nil &&
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

const (
	veleroNode   = "node-velero"           // whose agent is Velero's, as while the agents are exchanged
	veleroAgent  = "node-agent-of-velero"  // its pod
	veleroStops  = "Velero's agent stops"  // for ever
	otherContent = "snapshot-of-other"     // a VolumeSnapshotContent of another Velero in the cluster, with movers of Lateen
	otherOwner   = "a transfer of another" // UID
)

// drawVelero adds a node with Velero's agent to one in four schedules, and moves pods of backups and restores there. It draws
// from a stream of its own.
func drawVelero(plan *Plan) {
	const oneIn = 4
	random := rand.New(rand.NewPCG(plan.Seed, veleroStream))
	plan.Velero = random.IntN(oneIn) == 0
	for i, work := range plan.Work {
		plan.Work[i].Veleros = plan.Velero && work.onNode() && random.IntN(2) == 0
	}
}

// furnishVelero creates the node with Velero's agent, which has room for no mover, and what another Velero has.
func (s *Simulation) furnishVelero() {
	if s.plan.Velero {
		s.createNode(veleroNode)
		s.Patch("nodes", s.API.Get("nodes", "", veleroNode), map[string]any{"spec": map[string]any{"unschedulable": true}})
		agent := podTemplate("node-agent", "node-agent", "server")
		agent.Labels["role"], agent.Spec.NodeName = "node-agent", veleroNode
		s.begins(s.Create("pods", veleroNamespace, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: veleroAgent, Labels: agent.Labels}, Spec: agent.Spec}))
	}
	if s.plan.Foreign > 0 {
		s.storage.snapshots[otherContent] = otherOwner
		s.Create("volumesnapshotcontents", "", &snapshotv1.VolumeSnapshotContent{
			ObjectMeta: metav1.ObjectMeta{Name: otherContent, Labels: map[string]string{api.LabelMover: "true", api.LabelOwnerUID: "other"}},
			Spec: snapshotv1.VolumeSnapshotContentSpec{
				Driver: driver, DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
				Source:            snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: new(otherContent)},
				VolumeSnapshotRef: corev1.ObjectReference{Namespace: "other", Name: "other", UID: "other"},
			},
		})
	}
}

// veleros plays Velero's agent: it accepts new transfers, of pods those of its node, and moves by its own code what it has
// accepted, in one step.
func (s *Simulation) veleros() (all []choice) {
	if !s.plan.Velero || slices.Contains(s.faults.met, veleroStops) {
		return nil
	}
	for _, j := range s.work {
		object := s.API.Find(j.transfer)
		if j.transfer == "" || object == nil || object.GetDeletionTimestamp() != nil || j.onNode() && !j.Veleros {
			continue
		}
		switch v := viewOf(object); {
		case v.phase == "" && (j.onNode() || !v.cancel) && s.waitsForRestore(j):
			all = append(all, choice{"Velero's agent: accepts " + object.Key(), seldom, func() {
				j.accepted = true
				s.Patch(plural(j.Kind), object, map[string]any{"status": map[string]any{
					"phase": "Accepted", "acceptedByNode": veleroNode, "acceptedTimestamp": s.Now(),
				}})
			}})
		case j.Veleros && !j.accepted && v.phase != "" && (!v.cancel || v.phase != "Canceled"): // a cancel does not wait until the pod is known
			s.promises.fail("%s of a pod on Velero's node is %s, and Velero's agent has not accepted it", object.Key(), v.phase)
		case j.accepted && v.phase == "Accepted":
			all = append(all, choice{"Velero's agent: moves " + object.Key(), seldom, func() { s.moveByVelero(j, object, v) }},
				choice{veleroStops, 1, func() {
					s.faults.met = append(s.faults.met, veleroStops)
					s.faults.since = s.API.Now()
					pod := s.API.Get("pods", veleroNamespace, veleroAgent)
					s.Patch("pods", pod, map[string]any{"status": map[string]any{"conditions": s.conditions(corev1.ConditionFalse)}})
				}})
		}
	}
	return all
}

// waitsForRestore reports whether the pod of a restore, if it is still there, waits for its volumes.
func (s *Simulation) waitsForRestore(j *job) bool {
	pod := s.API.Find(j.source.GetUID())
	return j.Kind != Restore || pod == nil || len(apiserver.As[corev1.Pod](pod).Status.InitContainerStatuses) > 0
}

// moveByVelero ends a transfer as its data is moved. Two agents that expose one snapshot destroy it (D2).
func (s *Simulation) moveByVelero(j *job, object *apiserver.Object, v view) {
	for _, plural := range []string{"pods", "persistentvolumeclaims", "volumesnapshots", "volumesnapshotcontents"} {
		for _, exposed := range s.API.List(plural) {
			if exposed.GetLabels()[api.LabelOwnerUID] == string(j.transfer) {
				s.promises.fail("Velero's agent exposes %s, and Lateen's created %s %s for it", object.Key(), plural, exposed.Key())
			}
		}
	}
	phase, source := "Completed", s.API.Find(j.source.GetUID())
	if j.Kind == Upload {
		source = s.API.Get("volumesnapshots", appNamespace, j.snapshot)
	}
	j.byVelero = true
	switch {
	case v.cancel:
		phase = "Canceled"
	case source == nil:
		phase = "Failed"
	case j.Kind == Upload:
		s.storage.uploaded[j.transfer] = j.original
	case j.Kind == Backup:
		s.storage.uploaded[j.transfer] = dataOf(j.source.GetUID())
	case j.Kind == Restore:
		s.storage.restored[j.source.GetUID()] = true
	case j.Kind == Download:
		handle := "vol-" + string(j.transfer)
		s.storage.volumes[handle] = string(j.transfer)
		claim := apiserver.As[corev1.PersistentVolumeClaim](source)
		s.Join(source, s.Create("persistentvolumes", "", persistentVolume(handle, "pv-"+string(j.transfer), s.plan.reclaim(), claim)))
	}
	if j.Kind == Upload && source != nil {
		s.Delete("volumesnapshots", source)
	}
	s.Patch(plural(j.Kind), object, map[string]any{"status": map[string]any{"phase": phase, "node": veleroNode}})
}

// checkOther checks that what another Velero owns is left alone.
func (s *Simulation) checkOther() error {
	if s.plan.Foreign > 0 && s.API.Get("volumesnapshotcontents", "", otherContent) == nil {
		return fmt.Errorf("VolumeSnapshotContent %s of another Velero is deleted", otherContent)
	}
	return nil
}
