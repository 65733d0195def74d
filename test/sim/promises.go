package sim

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/reconcile/transfer"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// promises collects what single events break.
type promises struct {
	broken    []string
	reads     int // requests of agents about transfers
	writes    int
	checked   int64
	deletions map[string]bool // of jobs, of which agents have the answer
}

func (p *promises) fail(format string, args ...any) {
	p.broken = append(p.broken, fmt.Sprintf(format, args...))
}

// request counts a request. Elections, Kubernetes Events and watches have a pace of their own.
func (p *promises) request(of *parked, reply apiserver.Reply) {
	if reply.Watch == nil && !strings.Contains(of.request.Path, "/events") && !strings.Contains(of.request.Path, "/leases") {
		if of.request.Method == http.MethodGet {
			p.reads++
		} else {
			p.writes++
		}
	}
}

// write checks the volume that a mover is about to write to.
func (p *promises) write(s *Simulation, m *mover) {
	switch m.kind {
	case Backup, Upload:
		return
	case Download:
		p.writeClaim(s, m)
		return
	case Restore:
	}
	object := s.API.Get(m.plural, veleroNamespace, m.pod.Name)
	target := apiserver.As[velerov1.PodVolumeRestore](object).Spec.Pod
	pod := s.API.Get("pods", target.Namespace, target.Name)
	if pod != nil && pod.GetUID() == target.UID && apiserver.As[corev1.Pod](pod).Status.Phase == corev1.PodRunning && !s.faults.silent[m.pod.Spec.NodeName] {
		p.fail("mover %s writes to the volume of pod %s, which runs", m.pod.Name, pod.Key())
	}
}

// writeClaim checks the volume that a mover of a DataDownload is about to write to: no other claim may have it.
func (p *promises) writeClaim(s *Simulation, m *mover) {
	for _, object := range s.API.List("persistentvolumes") {
		volume := apiserver.As[corev1.PersistentVolume](object).Spec
		if volume.CSI == nil || volume.CSI.VolumeHandle != m.handle || volume.ClaimRef == nil {
			continue
		}
		if claim := volume.ClaimRef; claim.Namespace != veleroNamespace || claim.Name != m.pod.Name {
			p.fail("mover %s writes to volume %s of claim %s/%s", m.pod.Name, object.Key(), claim.Namespace, claim.Name)
		}
	}
}

// deleteVolume checks a volume that is about to be deleted.
func (p *promises) deleteVolume(s *Simulation, volume *apiserver.Object, handle string) {
	claimed := apiserver.As[corev1.PersistentVolume](volume).Spec.ClaimRef
	if claimed != nil && s.faults.deleted[claimed.UID] {
		return // somebody deleted its claim
	}
	if strings.HasPrefix(handle, "vol-app") {
		p.fail("volume %s of an application is deleted", volume.Key())
	}
	owner := s.API.Find(types.UID(s.storage.volumes[handle]))
	rebound := slices.ContainsFunc(s.work, func(j *job) bool { return owner != nil && j.transfer == owner.GetUID() && s.delivered(j) })
	if owner != nil && viewOf(owner).phase == "Completed" && owner.GetKind() == string(Download) && !rebound {
		p.fail("volume %s with the data of %s is deleted", volume.Key(), owner.Key())
	}
}

// check returns the first promise that is broken now.
func (s *Simulation) check() error {
	if len(s.promises.broken) > 0 {
		return errors.New(s.promises.broken[0])
	}
	if !s.calm() {
		s.hindered = s.API.Now()
	}
	if s.promises.checked == s.API.Revision() {
		return nil
	}
	s.promises.checked = s.API.Revision()
	for _, holds := range []func() error{
		s.checkSlots, s.checkQueue, s.checkCluster, s.checkMovers, s.checkJobs, s.checkBound, s.checkLost, s.checkCanceled, s.checkRequests, s.checkOther, s.checkHandles,
	} {
		if err := holds(); err != nil {
			return err
		}
	}
	return nil
}

// checkRequests bounds the requests of a schedule: those of each start, of each transfer, and of each fault.
func (s *Simulation) checkRequests() error {
	const start, transfer, fault, repository, refused = 40, 150, 300, 100, 4000
	most := start*s.started + transfer*len(s.plan.Work) + fault*len(s.faults.met) + repository*s.plan.Repositories*(1+s.plan.Failing)
	if slices.Contains(s.faults.met, refuseWrites) { // each key is retried after half a minute at the latest
		most += refused
	}
	if sent := s.promises.reads + s.promises.writes; sent > most {
		return fmt.Errorf("agents sent %d requests, more than %d", sent, most)
	}
	return nil
}

// checkBound checks that each transfer ends in time. A fault may cost the time of a timeout and of another attempt.
func (s *Simulation) checkBound() error {
	const calm, fault = 15 * time.Minute, 45 * time.Minute
	bound := calm + time.Duration(len(s.faults.met))*fault
	if slices.Contains(s.faults.met, refuseWrites) { // one transfer after the other may wait for its timeout
		bound += time.Duration(len(s.plan.Work)) * fault
	}
	if s.faults.refused.stopsTransfers() {
		return nil
	}
	for _, j := range s.work {
		if j.transfer == "" || j.ended {
			continue
		}
		object := s.API.Find(j.transfer)
		if j.ended = object == nil || viewOf(object).ended(); !j.ended && time.Since(j.asked) > bound {
			return fmt.Errorf("%s %s has not ended within %s, with %d faults", j.Kind, object.Key(), bound, len(s.faults.met))
		}
	}
	return nil
}

// moverSucceeded is on a DataDownload whose mover has ended: its rebind takes no slot.
const moverSucceeded = "lateen.dev/moved"

// checkSlots checks that no node has more transfers InProgress than slots.
func (s *Simulation) checkSlots() error {
	count := map[string]int{}
	for _, transfer := range s.transfers() {
		if v := viewOf(transfer.Object); v.phase == "InProgress" && transfer.GetAnnotations()[moverSucceeded] == "" {
			count[v.node]++ // An agent that stands in for that of the node may not see all that it did.
			if p := s.last(v.node); count[v.node] > s.slots(v.node) && (p == nil || !p.alive() || p.cut) && slices.ContainsFunc(s.API.Watches(), s.stalled) {
				s.faults.overlaps[v.node]++
			}
			if slots := s.slots(v.node); count[v.node] > slots {
				return fmt.Errorf("%s has %d transfers InProgress and %d slots", v.node, count[v.node], slots)
			}
		}
	}
	return nil
}

// slots returns how many transfers of a node may be InProgress: each agent counts for itself.
func (s *Simulation) slots(node string) int { return s.faults.slots * (1 + s.faults.overlaps[node]) }

// checkQueue checks that no more transfers are Accepted or Prepared than the queue has places. A mover that is lost needs no
// place again, so the check is for schedules without faults.
func (s *Simulation) checkQueue() error {
	prepared := 0
	for _, transfer := range s.transfers() {
		if phase := viewOf(transfer.Object).phase; phase == "Accepted" || phase == "Prepared" {
			prepared++
		}
	}
	if s.plan.Queue > 0 && prepared > s.plan.Queue && len(s.faults.met) == 0 && !s.plan.Velero {
		return fmt.Errorf("%d transfers are prepared, and the queue has %d places", prepared, s.plan.Queue)
	}
	return nil
}

// checkCluster checks the limits of the cluster and of the storage class. No coordinator knows of late writes of the one before it.
func (s *Simulation) checkCluster() error {
	accepted, ofClass := 0, 0
	for _, transfer := range s.transfers() {
		v := viewOf(transfer.Object)
		if v.phase != "" && v.phase != "New" && !v.ended() && transfer.GetAnnotations()[moverSucceeded] == "" {
			accepted++
			if strings.HasPrefix(transfer.Plural, "data") {
				ofClass++
			}
		}
	}
	if s.plan.Cluster > 0 && accepted > s.plan.Cluster+s.lag.overtaken {
		return fmt.Errorf("%d transfers are accepted, and the cluster may have %d", accepted, s.plan.Cluster)
	}
	if s.plan.Class > 0 && ofClass > s.plan.Class+s.lag.overtaken {
		return fmt.Errorf("%d transfers of storage class %s are accepted, and it may have %d", ofClass, className, s.plan.Class)
	}
	return nil
}

// checkMovers checks that one attempt of a transfer has one mover at most.
func (s *Simulation) checkMovers() error {
	seen := map[string]string{}
	for _, m := range s.running() {
		attempt := string(m.transfer) + "/" + m.pod.Annotations["lateen.dev/attempt"]
		if other, twice := seen[attempt]; twice && m.begun {
			return fmt.Errorf("two movers of one attempt run: pods %s and %s of %s", other, m.pod.UID, m.pod.Name)
		}
		if m.begun {
			seen[attempt] = string(m.pod.UID)
		}
	}
	return nil
}

// checkHandles checks that every snapshot of the driver has a content that knows it.
func (s *Simulation) checkHandles() error {
	known := map[string]bool{}
	for _, object := range s.API.List("volumesnapshotcontents") {
		of := apiserver.As[snapshotv1.VolumeSnapshotContent](object)
		if of.Status != nil && of.Status.SnapshotHandle != nil {
			known[*of.Status.SnapshotHandle] = true
		}
		if of.Spec.Source.SnapshotHandle != nil {
			known[*of.Spec.Source.SnapshotHandle] = true
		}
	}
	// The driver keeps a snapshot whose content somebody deletes before its status has the handle. Of a snapshot that
	// somebody deleted, the driver never reports the handle.
	excused := slices.ContainsFunc(s.faults.met, func(what string) bool { return what == deleteSnapshot || what == deleteNamespace })
	for handle := range s.storage.snapshots {
		if !known[handle] && !excused {
			return fmt.Errorf("snapshot %s is lost: no VolumeSnapshotContent has its handle", handle)
		}
	}
	// A content that was created late names a snapshot that the driver has deleted, and goes with the sweep of orphans.
	excused = excused || slices.Contains(s.faults.met, delayRequest)
	for i, handle := range s.storage.deleted {
		if slices.Contains(s.storage.deleted[:i], handle) && !excused {
			return fmt.Errorf("snapshot %s is deleted twice", handle)
		}
	}
	return nil
}

// asked reports whether Velero's server has asked for all work.
func (s *Simulation) asked() bool {
	return s.work != nil && !slices.ContainsFunc(s.work, func(j *job) bool { return j.transfer == "" && !s.abandoned(j) })
}

// done reports whether all work has ended and nothing is left to do.
func (s *Simulation) done() bool {
	_, late := s.isLate()
	return !late && s.asked() && len(s.faults.due) == 0 && s.unsettled() == "" && s.leftovers() == "" && s.unmaintained() == ""
}

// unsettled describes the transfers that have not ended or are not cleaned up.
func (s *Simulation) unsettled() string {
	var all []string
	for _, transfer := range s.transfers() {
		if v := viewOf(transfer.Object); !v.ended() || len(transfer.GetFinalizers()) > 0 {
			all = append(all, fmt.Sprintf("%s %s is %s %s", transfer.GetKind(), transfer.GetName(), v.phase, v.message))
		}
	}
	return strings.Join(all, "; ")
}

// leftovers describes what Lateen made for transfers.
func (s *Simulation) leftovers() string {
	var all []string
	for _, plural := range []string{"pods", "persistentvolumeclaims", "volumesnapshots", "volumesnapshotcontents"} {
		for _, object := range s.API.List(plural) {
			if object.GetLabels()["lateen.dev/mover"] != "" && object.GetName() != otherContent {
				all = append(all, plural+" "+object.Key())
			}
		}
	}
	if slices.ContainsFunc(s.running(), func(m *mover) bool { return m.pod.Spec.NodeName != s.faults.ever }) {
		all = append(all, "running movers")
	}
	return strings.Join(all, "; ")
}

// checkEnd checks a schedule of which every transfer has ended.
func (s *Simulation) checkEnd() error {
	ended := 0
	if err := s.checkHistory(); err != nil {
		return err
	}
	for _, m := range s.running() {
		if m.begun {
			s.promises.write(s, m)
		}
	}
	if err := s.check(); err != nil {
		return err
	}
	for _, j := range s.work {
		if j.transfer == "" {
			continue // see abandoned
		}
		object := s.API.Find(j.transfer)
		if err := s.checkSnapshot(j); err != nil {
			return err
		}
		if object == nil {
			if !slices.Contains(s.faults.met, deleteIt) {
				return fmt.Errorf("%s of work %d is gone", j.Kind, j.number)
			}
			continue
		}
		if !j.byVelero {
			ended++
		}
		v := viewOf(object)
		if v.phase != "Completed" {
			if !s.justified(j) {
				return fmt.Errorf("%s %s is %s without a fault that justifies it: %s", j.Kind, object.Key(), v.phase, v.message)
			}
			if j.Kind == Download && v.phase == "Failed" && s.delivered(j) {
				return fmt.Errorf("%s is Failed, and its claim has what it restored: %s", object.Key(), v.message)
			}
			continue
		}
		if err := s.checkData(j, object); err != nil {
			return fmt.Errorf("%s %s is Completed: %w", j.Kind, object.Key(), err)
		}
	}
	if err := s.checkMetrics(ended); err != nil {
		return err
	}
	return s.checkMemory()
}

// checkSnapshot checks that the snapshot of an upload that has ended, or was deleted, does not exist any more.
func (s *Simulation) checkSnapshot(j *job) error {
	if j.Kind != Upload || j.byVelero || s.faults.unprotected[j.transfer] || s.API.Get("volumesnapshots", appNamespace, j.snapshot) == nil {
		return nil
	}
	return fmt.Errorf("the upload of work %d has ended, and its snapshot %s is left", j.number, j.snapshot)
}

// justified reports whether a fault was met that may fail or cancel a transfer. A restore to a pod that loses its mover
// fails if the pod has gone on: nothing may overwrite its volume. So does a restore in place whose agent does not act when its
// mover is lost: only the kubelet of that node confirms that the mover has ended.
func (s *Simulation) justified(j *job) bool {
	lost := 0
	for _, what := range s.faults.met {
		if what == deleteMover || what == preempt || what == drainNode {
			lost++
		}
	}
	switch {
	case lost > transfer.DefaultLimits().Retries, j.Kind == Restore && lost > 0, j.InPlace && lost > 0 && len(s.faults.met) > lost:
		return true
	}
	// A storage class may be missing for longer than a transfer may take to be prepared.
	excuses := append(harmful(), deleteClass, killAgents, cancelHandover, refuseWrites, silenceEver)
	return slices.ContainsFunc(s.faults.met, func(what string) bool {
		return slices.Contains(excuses, what) || j.Veleros && what == veleroStops
	})
}

// delivered reports whether the target of a restore is bound to the volume with its data.
func (s *Simulation) delivered(j *job) bool {
	claim := s.API.Find(j.source.GetUID())
	if claim == nil {
		return false
	}
	volume := s.API.Get("persistentvolumes", "", apiserver.As[corev1.PersistentVolumeClaim](claim).Spec.VolumeName)
	return volume != nil && s.storage.volumes[apiserver.As[corev1.PersistentVolume](volume).Spec.CSI.VolumeHandle] == string(j.transfer)
}

// checkData checks that the bytes of a Completed transfer are where they belong.
func (s *Simulation) checkData(j *job, object *apiserver.Object) error {
	switch j.Kind {
	case Upload:
		if got := s.storage.uploaded[j.transfer]; got != j.original {
			return fmt.Errorf("it moved %q instead of %q", got, j.original)
		}
	case Restore:
		if !s.storage.restored[j.source.GetUID()] {
			return fmt.Errorf("pod %s was not restored", j.source.Key())
		}
	case Download:
		target := apiserver.As[velerov2alpha1.DataDownload](object).Spec.TargetVolume
		claim := s.API.Get("persistentvolumeclaims", target.Namespace, target.PVC)
		if s.faults.deleted[j.source.GetUID()] {
			return nil
		}
		name := apiserver.As[corev1.PersistentVolumeClaim](claim).Spec.VolumeName
		volume := s.API.Get("persistentvolumes", "", name)
		if volume == nil {
			return fmt.Errorf("claim %s has no volume", claim.Key())
		}
		bound := apiserver.As[corev1.PersistentVolume](volume)
		if got := s.storage.volumes[bound.Spec.CSI.VolumeHandle]; got != string(j.transfer) {
			return fmt.Errorf("claim %s has %q", claim.Key(), got)
		}
		want := s.plan.reclaim()
		if j.InPlace {
			want = corev1.PersistentVolumeReclaimRetain
		}
		if bound.Spec.PersistentVolumeReclaimPolicy != want && !viewOf(object).keepsVolume() {
			return fmt.Errorf("volume %s has reclaim policy %s", name, bound.Spec.PersistentVolumeReclaimPolicy)
		}
	case Backup:
		if got, want := s.storage.uploaded[j.transfer], dataOf(j.source.GetUID()); got != want {
			return fmt.Errorf("it moved %q instead of %q", got, want)
		}
	}
	return nil
}

// Minimize removes faults and work from a plan as long as play still returns an error.
func Minimize(plan Plan, play func(Plan) error) Plan {
	for smaller := true; smaller; {
		smaller = false
		for i := range plan.Faults {
			less := plan
			less.Faults = slices.Delete(slices.Clone(plan.Faults), i, i+1)
			if play(less) != nil {
				plan, smaller = less, true
				break
			}
		}
		for i := 0; !smaller && i < len(plan.Work) && len(plan.Work) > 1; i++ {
			less := plan
			less.Work = slices.Delete(slices.Clone(plan.Work), i, i+1)
			if play(less) != nil {
				plan, smaller = less, true
			}
		}
	}
	if calm := plan; !plan.Hurry {
		if calm.Hurry = true; play(calm) != nil {
			plan = calm
		}
	}
	return plan
}
