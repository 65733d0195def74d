// Package rebind decides, one step at a time, how a restored volume passes from the claim of its data mover to the
// claim that it was restored for. It never calls the API server, reads a clock or keeps anything.
package rebind

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/objects"
)

// What a volume remembers of its delivery.
const (
	LabelRebind = "lateen.dev/rebind" // UID of the DataDownload; stays, so that it is known that it was delivered
	// AnnotationReclaimPolicy is the policy that the volume had and gets back; it is there until then.
	AnnotationReclaimPolicy = "lateen.dev/reclaim-policy"
)

// State is what is there of a restored volume on its way to the claim that it was restored for.
type State struct {
	Move   objects.MoverSpec
	Pod    *corev1.Pod                   // the mover; nil if it is gone
	Claim  *corev1.PersistentVolumeClaim // into which was restored; nil if it is gone
	Volume *corev1.PersistentVolume      // of that claim, or found by LabelRebind; nil if there is none
	Target *corev1.PersistentVolumeClaim // nil if it does not exist
}

// Step is the next thing to do for a delivery. Each is safe to do twice, and one after which the agent may die.
type Step int

// The steps of a delivery.
const (
	Done          Step = iota // the target is bound to the volume, which is as it was
	Wait                      // something else has to happen first; the words say what
	Fail                      // it cannot be delivered; the words say why
	RetainVolume              // let claim and mover go without the volume
	DeleteMover               // delete the mover pod
	DeleteClaim               // delete the claim into which was restored
	SetClaimRef               // name the target on the volume
	SetVolumeName             // name the volume on the target
	ReleaseVolume             // give the volume its reclaim policy back
)

func (h Step) String() string {
	names := [...]string{
		"Done", "Wait", "Fail", "RetainVolume", "DeleteMover", "DeleteClaim", "SetClaimRef", "SetVolumeName", "ReleaseVolume",
	}
	if h < 0 || int(h) >= len(names) {
		return fmt.Sprintf("Step(%d)", int(h))
	}
	return names[h]
}

// Next is the next step of a delivery, with words where there is something to say. The volume is reserved
// before the target names it: Kubernetes looks at a claim when the claim changes, and binds it at once if the
// volume is reserved for it then. The other way round it would look again only with its next resync.
//
// A mover or a restore claim that is shown although the volume names the target already comes from a stale cache:
// both were deleted before. A volume that has its reclaim policy back was delivered, whatever became of the
// target since.
func (d State) Next() (Step, string) {
	if d.wasDelivered() {
		return Done, ""
	}
	if d.namesTarget() {
		d.Pod, d.Claim = nil, nil
	}
	if description := d.fail(); description != "" {
		return Fail, description
	}
	switch {
	case !d.retained():
		return RetainVolume, ""
	case d.Pod != nil && !objects.IsDeleting(d.Pod):
		return DeleteMover, ""
	case d.Claim != nil && !objects.IsDeleting(d.Claim):
		return DeleteClaim, ""
	case d.Pod != nil || d.Claim != nil:
		return Wait, d.leftovers()
	case !d.reserved():
		return SetClaimRef, ""
	case d.Target.Spec.VolumeName == "":
		return SetVolumeName, ""
	case !d.bound():
		return Wait, fmt.Sprintf("target claim %s is not yet bound to PersistentVolume %s", d.target(), d.Volume.Name)
	case d.marked():
		return ReleaseVolume, ""
	}
	return Done, ""
}

// fail says why a volume cannot be delivered. It is looked at before each step, and before the first one
// that cannot be taken back.
func (d State) fail() string {
	switch {
	case d.Volume == nil:
		return "the volume that was restored does not exist any more"
	case d.Volume.Labels[objects.LabelKept] != "":
		return "the delivery was given up before"
	case d.Target == nil:
		return fmt.Sprintf("target claim %s does not exist", d.target())
	case d.bound():
		return ""
	case objects.IsDeleting(d.Target):
		return fmt.Sprintf("target claim %s is being deleted", d.target())
	case d.Target.Spec.VolumeName != "" && d.Target.Spec.VolumeName != d.Volume.Name:
		return fmt.Sprintf("target claim %s is already bound to PersistentVolume %s", d.target(), d.Target.Spec.VolumeName)
	case d.Claim == nil && !d.labelled():
		return fmt.Sprintf("PersistentVolume %s is not the one that was restored", d.Volume.Name)
	case d.Claim != nil && !d.holds(d.Claim):
		return fmt.Sprintf("PersistentVolume %s does not belong to claim %s/%s", d.Volume.Name, d.Claim.Namespace, d.Claim.Name)
	case objects.IsDeleting(d.Volume):
		return fmt.Sprintf("PersistentVolume %s is being deleted", d.Volume.Name)
	case d.inUse() && !d.namesTarget():
		ref := d.Volume.Spec.ClaimRef
		return fmt.Sprintf("PersistentVolume %s is bound to claim %s/%s", d.Volume.Name, ref.Namespace, ref.Name)
	}
	return ""
}

// labelled tells whether the volume remembers that it is for this DataDownload.
func (d State) labelled() bool { return d.Volume.Labels[LabelRebind] == string(d.Move.UID) }

// wasDelivered tells whether the volume has been bound to the target and got its reclaim policy back: LabelRebind and
// AnnotationReclaimPolicy are set together, and the label stays.
func (d State) wasDelivered() bool {
	return d.Volume != nil && d.labelled() && !d.marked() && d.Volume.Labels[objects.LabelKept] == ""
}

// namesTarget tells whether the claimRef of a volume on its way is that of a claim with the target's name.
func (d State) namesTarget() bool {
	return d.Volume != nil && d.labelled() && claimOf(d.Volume) == d.target()
}

// inUse tells whether a claim other than the restore claim is bound to the volume.
func (d State) inUse() bool {
	restore := types.NamespacedName{Namespace: d.Move.Namespace, Name: d.Move.Name}
	return d.Volume.Status.Phase == corev1.VolumeBound && claimOf(d.Volume) != restore
}

// claimOf is the claim that the claimRef of a volume names.
func claimOf(volume *corev1.PersistentVolume) (claim types.NamespacedName) {
	if ref := volume.Spec.ClaimRef; ref != nil {
		claim = types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	}
	return claim
}

// marked tells whether the volume has yet to get its reclaim policy back.
func (d State) marked() bool { return d.Volume.Annotations[AnnotationReclaimPolicy] != "" }

// retained tells whether the volume outlives its claim, or need not any more.
func (d State) retained() bool {
	return d.labelled() &&
		(d.Volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain || d.bound())
}

func (d State) holds(claim *corev1.PersistentVolumeClaim) bool {
	ref := d.Volume.Spec.ClaimRef
	return ref != nil && ref.UID == claim.UID
}

// reserved tells whether the volume is for the target and for no other claim of that name.
func (d State) reserved() bool {
	ref := d.Volume.Spec.ClaimRef
	return ref != nil && ref.Namespace == d.Target.Namespace && ref.Name == d.Target.Name && (ref.UID == "" || ref.UID == d.Target.UID)
}

func (d State) bound() bool {
	return d.Target.Spec.VolumeName == d.Volume.Name && d.Target.Status.Phase == corev1.ClaimBound && d.holds(d.Target)
}

func (d State) target() types.NamespacedName {
	return types.NamespacedName{Namespace: d.Move.Source.Target.Namespace, Name: d.Move.Source.Target.Claim}
}

func (d State) leftovers() string {
	var left []string
	if d.Pod != nil {
		left = append(left, "mover pod "+d.Pod.Name)
	}
	if d.Claim != nil {
		left = append(left, "claim "+d.Claim.Name)
	}
	return strings.Join(left, " and ") + " are being deleted"
}

// VolumePatch is a merge patch of a volume. Null takes a label, annotation or field away.
type VolumePatch struct {
	Metadata VolumeMetadata `json:"metadata"`
	Spec     VolumeSpec     `json:"spec,omitzero"`
}

// VolumeMetadata is what a VolumePatch says of the metadata. With the UID, another volume that has got the
// name since is not changed, because a UID cannot be.
type VolumeMetadata struct {
	UID         types.UID          `json:"uid"`
	Labels      map[string]*string `json:"labels,omitempty"`
	Annotations map[string]*string `json:"annotations,omitempty"`
}

// VolumeSpec is what a VolumePatch says of the spec.
type VolumeSpec struct {
	ClaimRef map[string]*string                   `json:"claimRef,omitempty"`
	Policy   corev1.PersistentVolumeReclaimPolicy `json:"persistentVolumeReclaimPolicy,omitempty"`
}

// Retain makes the volume outlive its claim, and remembers for whom it is and what its policy was.
func (d State) Retain() VolumePatch {
	was := cmp.Or(d.Volume.Annotations[AnnotationReclaimPolicy], string(d.Volume.Spec.PersistentVolumeReclaimPolicy))
	return VolumePatch{
		VolumeMetadata{
			UID:         d.Volume.UID,
			Labels:      map[string]*string{LabelRebind: new(string(d.Move.UID))},
			Annotations: map[string]*string{AnnotationReclaimPolicy: &was},
		},
		VolumeSpec{Policy: corev1.PersistentVolumeReclaimRetain},
	}
}

// Reserve makes the volume fit the target: what a claim of that name, and only that, will be bound to.
func (d State) Reserve() VolumePatch {
	labels := map[string]*string{}
	if selector := d.Target.Spec.Selector; selector != nil {
		for name, value := range selector.MatchLabels {
			labels[name] = new(value)
		}
	}
	return VolumePatch{
		VolumeMetadata{UID: d.Volume.UID, Labels: labels, Annotations: map[string]*string{objects.AnnotationBoundByController: nil}},
		VolumeSpec{ClaimRef: map[string]*string{
			"apiVersion": new("v1"), "kind": new("PersistentVolumeClaim"),
			"namespace": &d.Target.Namespace, "name": &d.Target.Name, "uid": nil, "resourceVersion": nil,
		}},
	}
}

// Release gives the volume the policy back that it had.
func (d State) Release() VolumePatch {
	return VolumePatch{
		VolumeMetadata{UID: d.Volume.UID, Annotations: map[string]*string{AnnotationReclaimPolicy: nil}},
		VolumeSpec{Policy: corev1.PersistentVolumeReclaimPolicy(d.Volume.Annotations[AnnotationReclaimPolicy])},
	}
}

// Keep makes a volume that cannot be delivered one that nobody deletes: neither Kubernetes with the restore claim,
// nor the sweep. The reclaim policy of a volume that another claim uses is that claim's owner's to choose.
func (d State) Keep() VolumePatch {
	labels := map[string]*string{objects.LabelKept: new(objects.LabelValue(d.Move.Name)), LabelRebind: nil}
	for name := range objects.OwnerLabels(d.Move.UID, d.Move.ExposingNode) {
		labels[name] = nil
	}
	patch := VolumePatch{Metadata: VolumeMetadata{UID: d.Volume.UID, Labels: labels, Annotations: map[string]*string{AnnotationReclaimPolicy: nil}}}
	if !d.inUse() {
		patch.Spec.Policy = corev1.PersistentVolumeReclaimRetain
	}
	return patch
}

// ClaimPatch is a merge patch of a target claim.
type ClaimPatch struct {
	Metadata struct {
		UID         types.UID          `json:"uid"`
		Annotations map[string]*string `json:"annotations,omitempty"`
	} `json:"metadata"`
	Spec struct {
		VolumeName string `json:"volumeName"`
	} `json:"spec"`
}

// Choose names the volume on the target. What Kubernetes wrote about an earlier binding goes, or the claim
// would be called lost; what it has written since is not touched.
func (d State) Choose() ClaimPatch {
	var patch ClaimPatch
	patch.Metadata.UID = d.Target.UID
	for _, name := range []string{objects.AnnotationBindCompleted, objects.AnnotationBoundByController} {
		if _, there := d.Target.Annotations[name]; there {
			if patch.Metadata.Annotations == nil {
				patch.Metadata.Annotations = map[string]*string{}
			}
			patch.Metadata.Annotations[name] = nil
		}
	}
	patch.Spec.VolumeName = d.Volume.Name
	return patch
}
