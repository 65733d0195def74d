package exposer

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/rebind"
)

// existing reads the volume that is restored in place, for the target claim of its data. Velero's server has set its reclaim
// policy to Retain and deleted its claim before it names the volume in a DataDownload (velero #10104).
func (e *Exposer) existing(ctx context.Context, spec objects.MoverSpec, target *corev1.PersistentVolumeClaim) (*corev1.PersistentVolume, error) {
	name := spec.Source.Target.Volume
	volume, err := e.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, terminalIfGone(fmt.Errorf("get PersistentVolume %s to restore in place: %w", name, err))
	}
	var refusal string
	before := types.NamespacedName{Namespace: target.Namespace, Name: target.Name}
	claim, uid := before, types.UID("")
	if ref := volume.Spec.ClaimRef; ref != nil {
		claim, uid = types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, ref.UID
	}
	switch {
	case objects.IsDeleting(volume):
		refusal = "it is being deleted"
	case volume.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain:
		refusal = "its reclaim policy is not Retain, so it would not outlive its claims"
	case claim != before && claim != types.NamespacedName{Namespace: spec.Namespace, Name: spec.Name}, uid != "" && uid == target.UID:
		refusal = fmt.Sprintf("it belongs to claim %s", claim)
	case objects.IsBlock(target.Spec.VolumeMode) != objects.IsBlock(volume.Spec.VolumeMode):
		refusal = "its volume mode is not that of the target claim"
	case spec.BlockMover && !objects.IsBlock(volume.Spec.VolumeMode):
		refusal = "data mover velero-block needs a device, and its volume mode is Filesystem"
	default:
		return volume, nil
	}
	return nil, &TerminalError{fmt.Errorf("restore PersistentVolume %s in place: %s", name, refusal)}
}

// reserve reserves the existing volume for the restore claim, to which Kubernetes then binds it. The resourceVersion protects a
// volume that has been bound to another claim since it was read.
func (e *Exposer) reserve(ctx context.Context, volume *corev1.PersistentVolume, claim *corev1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName != volume.Name { // of an agent of Velero that does not restore in place
		return &TerminalError{fmt.Errorf("restore PersistentVolume %s in place: claim %s/%s is for another volume", volume.Name, claim.Namespace, claim.Name)}
	}
	if objects.IsOf(volume, claim) {
		return nil
	}
	patch := rebind.State{Volume: volume, Target: claim}.Reserve()
	patch.Metadata.ResourceVersion = volume.ResourceVersion
	patch.Metadata.Labels[api.LabelKept] = nil // it was kept after an earlier restore, and then used again
	if _, err := mergePatch(ctx, e.Client.CoreV1().PersistentVolumes(), volume.Name, patch); err != nil {
		return fmt.Errorf("reserve PersistentVolume %s for claim %s/%s: %w", volume.Name, claim.Namespace, claim.Name, err)
	}
	return nil
}
