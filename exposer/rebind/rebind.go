// Package rebind is the state machine that moves a restored volume from the restore claim of its data mover to the
// target claim. It is pure: it never calls the API server, reads a clock or keeps state.
package rebind

import (
	"cmp"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
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
}

// Step is the next step of a rebind. Each step is idempotent, and the agent may crash after each.
type Step int

// The steps of a rebind.
const (
	Done          Step = iota // the target is bound to the volume, whose reclaim policy is restored
	Wait                      // wait for another controller; the message says what for
	Fail                      // the rebind can never succeed; the message says why
	RetainVolume              // set Retain, so that deleting the restore claim keeps the volume
	DeleteMover               // delete the mover pod
	DeleteClaim               // delete the restore claim
	SetClaimRef               // set the volume's claimRef to the target
	SetVolumeName             // set the target's volumeName
	ReleaseVolume             // restore the reclaim policy of the volume
)

func (s Step) String() string {
	names := [...]string{
		"Done", "Wait", "Fail", "RetainVolume", "DeleteMover", "DeleteClaim", "SetClaimRef", "SetVolumeName", "ReleaseVolume",
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
	case s.Claim != nil && !s.holds(s.Claim):
		return fmt.Sprintf("PersistentVolume %s does not belong to claim %s/%s", s.Volume.Name, s.Claim.Namespace, s.Claim.Name)
	case objects.IsDeleting(s.Volume):
		return fmt.Sprintf("PersistentVolume %s is being deleted", s.Volume.Name)
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

func (s State) holds(claim *corev1.PersistentVolumeClaim) bool {
	ref := s.Volume.Spec.ClaimRef
	return ref != nil && ref.UID == claim.UID
}

// Reserved reports whether the volume's claimRef names the target and no other claim of that name.
func (s State) Reserved() bool {
	ref := s.Volume.Spec.ClaimRef
	return ref != nil && ref.Namespace == s.Target.Namespace && ref.Name == s.Target.Name && (ref.UID == "" || ref.UID == s.Target.UID)
}

func (s State) bound() bool {
	return s.Target.Spec.VolumeName == s.Volume.Name && s.Target.Status.Phase == corev1.ClaimBound && s.holds(s.Target)
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
		policy, labels[api.LabelKept] = corev1.PersistentVolumeReclaimRetain, new(objects.LabelValue(s.Spec.Name))
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

// Choose returns the patch that sets the target's volumeName. It removes the observed annotations of Kubernetes
// about an earlier binding, because the claim would count as lost with them. It does not touch annotations that
// Kubernetes has added since.
func (s State) Choose() ClaimPatch {
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
