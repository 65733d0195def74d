package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

const (
	veleroNode   = "node-velero"           // whose agent is Velero's, as while the agents are exchanged
	veleroAgent  = "node-agent-of-velero"  // its pod
	veleroStops  = "Velero's agent stops"  // for ever
	otherContent = "snapshot-of-other"     // a VolumeSnapshotContent of another Velero in the cluster, with movers of Lateen
	otherOwner   = "a transfer of another" // UID
)

// drawVelero adds a node with Velero's agent to one in four schedules with an upload. It draws from a stream of its own.
func drawVelero(plan *Plan) {
	const oneIn = 4
	random := rand.New(rand.NewPCG(plan.Seed, veleroStream))
	uploads := slices.ContainsFunc(plan.Work, func(w Work) bool { return w.Kind == Upload })
	plan.Velero = random.IntN(oneIn) == 0 && uploads
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

// veleros plays Velero's agent: it accepts new DataUploads, and moves by its own code what it has accepted, in one step.
func (s *Simulation) veleros() (all []choice) {
	if !s.plan.Velero || slices.Contains(s.faults.met, veleroStops) {
		return nil
	}
	for _, object := range s.API.List(plural(Upload)) {
		upload := apiserver.As[velerov2alpha1.DataUpload](object)
		switch {
		case upload.Spec.DataMover != "" || object.GetDeletionTimestamp() != nil:
		case upload.Status.Phase == "" && !upload.Spec.Cancel:
			all = append(all, choice{"Velero's agent: accepts " + object.Key(), often, func() {
				s.Patch(plural(Upload), object, map[string]any{"status": map[string]any{
					"phase": velerov2alpha1.DataUploadPhaseAccepted, "acceptedByNode": veleroNode, "acceptedTimestamp": s.Now(),
				}})
			}})
		case upload.Status.AcceptedByNode == veleroNode && upload.Status.Phase == velerov2alpha1.DataUploadPhaseAccepted:
			all = append(all, choice{"Velero's agent: moves " + object.Key(), seldom, func() { s.moveByVelero(object, upload) }},
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

// moveByVelero exposes a snapshot, moves its data and deletes it. Two agents that expose one snapshot destroy it (D2).
func (s *Simulation) moveByVelero(object *apiserver.Object, upload *velerov2alpha1.DataUpload) {
	for _, plural := range []string{"pods", "persistentvolumeclaims", "volumesnapshots", "volumesnapshotcontents"} {
		for _, exposed := range s.API.List(plural) {
			if exposed.GetLabels()[api.LabelOwnerUID] == string(upload.UID) {
				s.promises.fail("Velero's agent exposes %s, and Lateen's created %s %s for it", object.Key(), plural, exposed.Key())
			}
		}
	}
	phase, source := velerov2alpha1.DataUploadPhaseCompleted, s.API.Get("volumesnapshots", appNamespace, upload.Spec.CSISnapshot.VolumeSnapshot)
	switch {
	case upload.Spec.Cancel:
		phase = velerov2alpha1.DataUploadPhaseCanceled
	case source == nil:
		phase = velerov2alpha1.DataUploadPhaseFailed
	}
	for _, j := range s.work {
		if j.transfer == upload.UID {
			j.byVelero, s.storage.uploaded[j.transfer] = true, j.original
		}
	}
	if source != nil {
		s.Delete("volumesnapshots", source)
	}
	s.Patch(plural(Upload), object, map[string]any{"status": map[string]any{"phase": phase, "node": veleroNode}})
}

// checkOther checks that what another Velero owns is left alone.
func (s *Simulation) checkOther() error {
	if s.plan.Foreign > 0 && s.API.Get("volumesnapshotcontents", "", otherContent) == nil {
		return fmt.Errorf("VolumeSnapshotContent %s of another Velero is deleted", otherContent)
	}
	return nil
}
