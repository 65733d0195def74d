// Package rebind is the state machine that moves a restored volume from the restore claim of its data mover to the
// target claim. It is pure: it never calls the API server, reads a clock or keeps state.
package rebind

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// State is the observed state of a restored volume and its rebind to the target claim.
type State struct {
	Spec   objects.MoverSpec
	Pod    *corev1.Pod                   // the mover; nil if it is deleted
	Claim  *corev1.PersistentVolumeClaim // the restore claim; nil if it is deleted
	Volume *corev1.PersistentVolume      // of the restore claim, or found by api.LabelRebind; nil if there is none
	Target *corev1.PersistentVolumeClaim // nil if it does not exist

	Replaced   *corev1.PersistentVolume // the restored volume, if Volume was created in its place; nil if it is deleted
	Detached   bool                     // no VolumeAttachment of the mover's node has the volume
	Attachment string                   // the name of that which has; empty before it is looked up
}

// Step is the next step of a rebind. Each step is idempotent, and the agent may crash after each.
type Step int

// The steps of a rebind.
const (
	Done           Step = iota // the target is bound to the volume, whose reclaim policy is restored
	Wait                       // wait for another controller; the message says what for
	Fail                       // the rebind can never succeed; the message says why
	RetainVolume               // set Retain, so that deleting the restore claim keeps the volume
	DeleteMover                // delete the mover pod
	DeleteClaim                // delete the restore claim
	FindAttachment             // look up whether the volume is still attached to the mover's node
	CreateVolume               // create a volume of the target's mode in place of the restored one
	DeleteVolume               // delete the restored volume that was replaced; its storage stays
	SetClaimRef                // set the volume's claimRef to the target
	SetVolumeName              // set the target's volumeName
	ReleaseVolume              // restore the reclaim policy of the volume
)

func (s Step) String() string {
	names := [...]string{
		"Done", "Wait", "Fail", "RetainVolume", "DeleteMover", "DeleteClaim", "FindAttachment", "CreateVolume", "DeleteVolume", "SetClaimRef", "SetVolumeName", "ReleaseVolume",
	}
	return names[s]
}

// Next returns the next step of a rebind, with a message if it waits or fails. The volume's claimRef is set before
// the target's volumeName. Kubernetes reconciles a claim when the claim changes, and binds it at once if the volume
// is reserved for it. In the other order it would bind only at its next resync.
//
// A mover or restore claim that is observed after the claimRef names the target comes from a stale cache: both were
// deleted before. A volume with its original reclaim policy was rebound, whatever happened to the target since.
func (s State) Next() (Step, string) {
	if s.isRebound() {
		return Done, ""
	}
	if s.namesTarget() {
		s.Pod, s.Claim = nil, nil
	}
	if s.hasTakenOver() && !objects.IsDeleting(s.Replaced) {
		return DeleteVolume, ""
	}
	if description := s.fail(); description != "" {
		return Fail, description
	}
	switch {
	case !s.retained():
		return RetainVolume, ""
	case s.Pod != nil && !objects.IsDeleting(s.Pod):
		return DeleteMover, ""
	case s.Claim != nil && !objects.IsDeleting(s.Claim):
		return DeleteClaim, ""
	case s.Pod != nil || s.Claim != nil:
		return Wait, s.leftovers()
	case s.namesTarget(): // it was detached before
	case s.Attachment != "":
		return Wait, fmt.Sprintf("PersistentVolume %s is still attached to node %s", s.Volume.Name, s.Spec.Source.Target.MoverNode)
	case !s.Detached:
		return FindAttachment, ""
	case s.changesMode():
		return CreateVolume, ""
	}
	switch {
	case !s.Reserved():
		return SetClaimRef, ""
	case s.Target.Spec.VolumeName == "":
		return SetVolumeName, ""
	case !s.bound():
		return Wait, fmt.Sprintf("target claim %s is not yet bound to PersistentVolume %s", s.target(), s.Volume.Name)
	case s.marked():
		return ReleaseVolume, ""
	}
	return Done, ""
}

// fail returns why a volume cannot be rebound. It is checked before each step, and so before the first step that
// cannot be undone.
func (s State) fail() string {
	switch {
	case s.Volume == nil:
		return "the restored volume does not exist any more"
	case s.Volume.Labels[api.LabelKept] != "":
		return "the rebind was abandoned before"
	case s.Target == nil:
		return fmt.Sprintf("target claim %s does not exist", s.target())
	case s.Replaced != nil && !s.hasTakenOver():
		return fmt.Sprintf("PersistentVolumes %s and %s both have label %s of this restore, and one is not a retained volume of the same storage",
			s.Volume.Name, s.Replaced.Name, api.LabelRebind)
	case s.bound():
		return ""
	case s.Target.Status.Phase == corev1.ClaimLost:
		return fmt.Sprintf("target claim %s is Lost", s.target())
	case objects.IsDeleting(s.Target):
		return fmt.Sprintf("target claim %s is being deleted", s.target())
	case s.Target.Spec.VolumeName != "" && s.Target.Spec.VolumeName != s.Volume.Name:
		return fmt.Sprintf("target claim %s is already bound to PersistentVolume %s", s.target(), s.Target.Spec.VolumeName)
	case s.Claim == nil && !s.labelled():
		return fmt.Sprintf("PersistentVolume %s is not the restored volume", s.Volume.Name)
	case s.Claim != nil && !objects.IsOf(s.Volume, s.Claim):
		return fmt.Sprintf("PersistentVolume %s does not belong to claim %s/%s", s.Volume.Name, s.Claim.Namespace, s.Claim.Name)
	case objects.IsDeleting(s.Volume):
		return fmt.Sprintf("PersistentVolume %s is being deleted", s.Volume.Name)
	case s.changesMode() && (!s.Spec.BlockMover || s.Spec.Source.Target.Volume != "" || s.Volume.Spec.CSI == nil || s.namesTarget()):
		return fmt.Sprintf("PersistentVolume %s has another volume mode than target claim %s", s.Volume.Name, s.target())
	case s.inUse() && !s.namesTarget():
		ref := s.Volume.Spec.ClaimRef
		return fmt.Sprintf("PersistentVolume %s is bound to claim %s/%s", s.Volume.Name, ref.Namespace, ref.Name)
	}
	return ""
}

// labelled reports whether the volume's label names this DataDownload.
func (s State) labelled() bool { return s.Volume.Labels[api.LabelRebind] == string(s.Spec.UID) }

// isRebound reports whether the volume was bound to the target and has its original reclaim policy. LabelRebind
// and AnnotationReclaimPolicy are set together, and the label stays.
func (s State) isRebound() bool {
	return s.Volume != nil && s.labelled() && !s.marked() && s.Volume.Labels[api.LabelKept] == ""
}

// namesTarget reports whether the claimRef of the labelled volume names the target.
func (s State) namesTarget() bool {
	return s.Volume != nil && s.labelled() && claimOf(s.Volume) == s.target()
}

// inUse reports whether a claim other than the restore claim is bound to the volume.
func (s State) inUse() bool {
	restore := types.NamespacedName{Namespace: s.Spec.Namespace, Name: s.Spec.Name}
	return s.Volume.Status.Phase == corev1.VolumeBound && claimOf(s.Volume) != restore
}

// claimOf returns the claim in the claimRef of a volume.
func claimOf(volume *corev1.PersistentVolume) (claim types.NamespacedName) {
	if ref := volume.Spec.ClaimRef; ref != nil {
		claim = types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	}
	return claim
}

// marked reports whether the original reclaim policy is still to be restored.
func (s State) marked() bool { return s.Volume.Annotations[api.AnnotationReclaimPolicy] != "" }

// retained reports whether the volume survives the deletion of its claim, or is already bound to the target.
func (s State) retained() bool {
	return s.labelled() &&
		(s.Volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain || s.bound())
}

// Reserved reports whether the volume's claimRef names the target and no other claim of that name.
func (s State) Reserved() bool {
	ref := s.Volume.Spec.ClaimRef
	return ref != nil && ref.Namespace == s.Target.Namespace && ref.Name == s.Target.Name && (ref.UID == "" || ref.UID == s.Target.UID)
}

func (s State) bound() bool {
	return s.Target.Spec.VolumeName == s.Volume.Name && s.Target.Status.Phase == corev1.ClaimBound && objects.IsOf(s.Volume, s.Target)
}

func (s State) target() types.NamespacedName {
	return types.NamespacedName{Namespace: s.Spec.Source.Target.Namespace, Name: s.Spec.Source.Target.Claim}
}

func (s State) leftovers() string {
	var left []string
	if s.Pod != nil {
		left = append(left, "mover pod "+s.Pod.Name)
	}
	if s.Claim != nil {
		left = append(left, "claim "+s.Claim.Name)
	}
	return strings.Join(left, " and ") + " are being deleted"
}

// attributeProvisioner is on volumes that external-provisioner has created. Without it, drivers take a volume for one of an
// administrator, which they have to register.
const attributeProvisioner = "storage.kubernetes.io/csiProvisionerIdentity"

// changesMode reports whether the restored volume has another mode than the target, as Velero's block mover leaves it.
func (s State) changesMode() bool {
	return objects.IsBlock(s.Volume.Spec.VolumeMode) != objects.IsBlock(s.Target.Spec.VolumeMode)
}

// hasTakenOver reports whether Volume has the storage of Replaced, which stays when Replaced is deleted.
func (s State) hasTakenOver() bool {
	if s.Replaced == nil || s.Volume.Spec.CSI == nil || s.Replaced.Spec.CSI == nil || !s.namesTarget() {
		return false
	}
	now, was := s.Volume.Spec.CSI, s.Replaced.Spec
	return now.Driver == was.CSI.Driver && now.VolumeHandle == was.CSI.VolumeHandle && was.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
}

// Choose sets Volume and Replaced from the volumes that are labelled with the DataDownload. There are two while one replaces the
// other: the claimRef of the new one names the target.
func (s *State) Choose(labelled []corev1.PersistentVolume) {
	for i := range labelled {
		if volume := &labelled[i]; claimOf(volume) == s.target() || s.Volume == nil {
			s.Volume, s.Replaced = volume, s.Volume
		} else {
			s.Replaced = volume
		}
	}
}

// Replacement returns the volume of the target's mode that takes the place of a restored device, because the mode of a volume cannot be
// changed. It has the same storage. fsType is that of the restored file system; empty: the driver's default. It keeps the annotations:
// without them, the driver would never delete the storage. It is reserved for the target. The name is unique, and the same at each attempt.
func (s State) Replacement(fsType string) *corev1.PersistentVolume {
	was := s.Volume.DeepCopy()
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-" + string(s.Spec.UID), Labels: was.Labels, Annotations: was.Annotations},
		Spec:       was.Spec,
	}
	delete(volume.Annotations, objects.AnnotationBoundByController)
	if selector := s.Target.Spec.Selector; selector != nil {
		volume.Labels = objects.Merged(volume.Labels, selector.MatchLabels)
	}
	volume.Spec.VolumeMode, volume.Spec.CSI.FSType = s.Target.Spec.VolumeMode, cmp.Or(fsType, volume.Spec.CSI.FSType)
	delete(volume.Spec.CSI.VolumeAttributes, attributeProvisioner)
	volume.Spec.ClaimRef = &corev1.ObjectReference{
		APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: s.Target.Namespace, Name: s.Target.Name, UID: s.Target.UID,
	}
	return volume
}

// VolumePatch is a merge patch of a volume. Null removes a label, annotation or field.
type VolumePatch struct {
	Metadata VolumeMetadata `json:"metadata"`
	Spec     VolumeSpec     `json:"spec,omitzero"`
}

// VolumeMetadata is the metadata of a VolumePatch. The UID protects a recreated volume of the same name, because a
// UID is immutable. The resourceVersion, if set, protects a volume that has changed since it was observed: agents of a
// node may overlap.
type VolumeMetadata struct {
	UID             types.UID          `json:"uid"`
	ResourceVersion string             `json:"resourceVersion,omitempty"`
	Labels          map[string]*string `json:"labels,omitempty"`
	Annotations     map[string]*string `json:"annotations,omitempty"`
}

// VolumeSpec is the spec of a VolumePatch.
type VolumeSpec struct {
	ClaimRef map[string]*string                   `json:"claimRef,omitempty"`
	Policy   corev1.PersistentVolumeReclaimPolicy `json:"persistentVolumeReclaimPolicy,omitempty"`
}

// Retain returns the patch that keeps the volume after its claim is deleted. It records the DataDownload and the
// original reclaim policy, which is Delete for a scratch claim.
func (s State) Retain() VolumePatch {
	was := cmp.Or(s.Volume.Annotations[api.AnnotationReclaimPolicy], string(s.Volume.Spec.PersistentVolumeReclaimPolicy))
	if s.Discards() {
		was = string(corev1.PersistentVolumeReclaimDelete)
	}
	return VolumePatch{
		VolumeMetadata{
			UID: s.Volume.UID, ResourceVersion: s.Volume.ResourceVersion,
			Labels:      map[string]*string{api.LabelRebind: new(string(s.Spec.UID))},
			Annotations: map[string]*string{api.AnnotationReclaimPolicy: &was},
		},
		VolumeSpec{Policy: corev1.PersistentVolumeReclaimRetain},
	}
}

// Reserve returns the patch that reserves the volume for the target. It sets the claimRef and the labels that the
// target's selector requires. It has the UID of the target, as after the binding: another agent may reserve a volume
// that is already bound, and without the UID Kubernetes would mark the target as Lost. It has no resourceVersion,
// because Kubernetes marks the volume as Released at the same time.
func (s State) Reserve() VolumePatch {
	labels := map[string]*string{}
	if selector := s.Target.Spec.Selector; selector != nil {
		for name, value := range selector.MatchLabels {
			labels[name] = new(value)
		}
	}
	return VolumePatch{
		VolumeMetadata{
			UID: s.Volume.UID, Labels: labels, Annotations: map[string]*string{objects.AnnotationBoundByController: nil},
		},
		VolumeSpec{ClaimRef: map[string]*string{
			"apiVersion": new("v1"), "kind": new("PersistentVolumeClaim"),
			"namespace": &s.Target.Namespace, "name": &s.Target.Name, "uid": new(string(s.Target.UID)), "resourceVersion": nil,
		}},
	}
}

// Release returns the patch that restores the reclaim policy. It may be applied twice, and Kubernetes still writes to
// the volume, so it has no resourceVersion.
func (s State) Release() VolumePatch {
	return VolumePatch{
		VolumeMetadata{UID: s.Volume.UID, Annotations: map[string]*string{api.AnnotationReclaimPolicy: nil}},
		VolumeSpec{Policy: corev1.PersistentVolumeReclaimPolicy(s.Volume.Annotations[api.AnnotationReclaimPolicy])},
	}
}

// Discards reports whether Kubernetes is to delete the volume with the scratch claim. One that was not provisioned is of an
// administrator.
func (s State) Discards() bool {
	return s.Spec.Source.Target.Scratch && s.Volume.Annotations[objects.AnnotationProvisionedBy] != ""
}

// Keep returns the patch for a volume that cannot be rebound. Neither Kubernetes with the restore claim nor the
// sweep deletes it then. If another claim uses the volume, the reclaim policy belongs to the owner of that claim
// and stays. The volume of a scratch claim is not kept: Kubernetes deletes it with the claim.
func (s State) Keep() VolumePatch {
	policy, labels := corev1.PersistentVolumeReclaimDelete, map[string]*string{api.LabelRebind: nil}
	if !s.Discards() {
		policy, labels[api.LabelKept] = corev1.PersistentVolumeReclaimRetain, new(api.LabelValue(s.Spec.Name))
	}
	for name := range objects.OwnerLabels(s.Spec.UID, s.Spec.ExposingNode) {
		labels[name] = nil
	}
	patch := VolumePatch{Metadata: VolumeMetadata{
		UID: s.Volume.UID, ResourceVersion: s.Volume.ResourceVersion,
		Labels: labels, Annotations: map[string]*string{api.AnnotationReclaimPolicy: nil},
	}}
	if !s.inUse() || s.Discards() && s.namesTarget() {
		patch.Spec.Policy = policy
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

// NameVolume returns the patch that sets the target's volumeName. It removes the observed annotations of Kubernetes
// about an earlier binding, because the claim would count as lost with them. It does not touch annotations that
// Kubernetes has added since.
func (s State) NameVolume() ClaimPatch {
	var patch ClaimPatch
	patch.Metadata.UID = s.Target.UID
	for _, name := range []string{objects.AnnotationBindCompleted, objects.AnnotationBoundByController} {
		if _, there := s.Target.Annotations[name]; there {
			if patch.Metadata.Annotations == nil {
				patch.Metadata.Annotations = map[string]*string{}
			}
			patch.Metadata.Annotations[name] = nil
		}
	}
	patch.Spec.VolumeName = s.Volume.Name
	return patch
}
