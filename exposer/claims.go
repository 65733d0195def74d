package exposer

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/objects"
)

// ensureClaim creates a claim, or adopts the existing one if it belongs to the same custom resource. It deletes one of
// an earlier attempt, and then waits for the event of its deletion.
func (e *Exposer) ensureClaim(ctx context.Context, want *corev1.PersistentVolumeClaim) (claim *corev1.PersistentVolumeClaim, waits string, err error) {
	claims := e.Client.CoreV1().PersistentVolumeClaims(want.Namespace)
	claim, err = claims.Create(ctx, want, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return claim, "", wrapCreate("create claim "+want.Name, err)
	}
	claim, err = claims.Get(ctx, want.Name, metav1.GetOptions{})
	if err != nil {
		return nil, "", fmt.Errorf("get claim %s: %w", want.Name, err)
	}
	patch, err := adoption("claim", claim, want)
	if err != nil {
		return nil, "", err
	}
	if objects.Attempt(claim) < objects.Attempt(want) && claim.DeletionTimestamp == nil {
		if err := e.removeClaim(ctx, claim); err != nil {
			return nil, "", err
		}
		claim.DeletionTimestamp = &metav1.Time{} // the time is irrelevant
	}
	waits = fmt.Sprintf("claim %s/%s is being deleted", claim.Namespace, claim.Name)
	switch {
	case claim.DeletionTimestamp == nil:
	case patch != nil: // of Velero's agent: no cache selects it, so no event reports its end
		return nil, "", errors.New(waits)
	default:
		return nil, waits, nil
	}
	if patch != nil {
		if _, err := claims.Patch(ctx, want.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return nil, "", fmt.Errorf("label claim %s: %w", want.Name, err)
		}
	}
	return claim, "", nil
}

// removeClaim deletes a claim that was created for a mover, together with its volume. Its class may retain volumes,
// and nothing else would delete this one. A volume labelled lateen.dev/kept stays.
func (e *Exposer) removeClaim(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName != "" {
		if err := e.releaseVolume(ctx, claim); err != nil {
			return err
		}
	}
	err := e.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(ctx, claim.Name, uidPrecondition(claim))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete claim %s: %w", claim.Name, err)
	}
	return nil
}

func (e *Exposer) releaseVolume(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	volumes := e.Client.CoreV1().PersistentVolumes()
	volume, err := volumes.Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get volume %s: %w", claim.Spec.VolumeName, err)
	case !objects.Disposable(volume, claim):
		return nil
	}
	patch := []byte(`{"metadata":{"resourceVersion":"` + volume.ResourceVersion + `"},"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	if _, err := volumes.Patch(ctx, volume.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("patch reclaim policy of volume %s: %w", volume.Name, err)
	}
	return nil
}

// FindLeftovers GETs the mover pod and the given PVCs; snapshots are not checked. It is for caches without these
// objects: the caches may lag behind.
func (e *Exposer) FindLeftovers(ctx context.Context, move objects.MoverSpec, pod bool, claims []string) (left Existing, err error) {
	if pod {
		left.Pod, err = get(ctx, e.Client.CoreV1().Pods(move.Namespace), move.Name)
		if err != nil {
			return Existing{}, fmt.Errorf("get mover pod %s: %w", move.Name, err)
		}
		if left.Pod != nil && !objects.OwnedBy(left.Pod, move.UID) {
			left.Pod = nil
		}
	}
	for _, name := range claims {
		claim, err := get(ctx, e.Client.CoreV1().PersistentVolumeClaims(move.Namespace), name)
		if err != nil {
			return Existing{}, fmt.Errorf("get claim %s: %w", name, err)
		}
		if claim != nil && objects.OwnedBy(claim, move.UID) {
			left.Claims = append(left.Claims, claim)
		}
	}
	return left, nil
}

// TargetClaim GETs the target claim of a restore; nil if it does not exist.
func (e *Exposer) TargetClaim(ctx context.Context, target types.NamespacedName) (*corev1.PersistentVolumeClaim, error) {
	claim, err := get(ctx, e.Client.CoreV1().PersistentVolumeClaims(target.Namespace), target.Name)
	if err != nil {
		return nil, fmt.Errorf("get claim %s: %w", target, err)
	}
	return claim, nil
}

// Claims returns the names of the claims that the current configuration creates for a mover.
func (e *Exposer) Claims(move objects.MoverSpec) []string {
	move.Restores = move.Restores && e.current().Cache != nil // otherwise no cache claim exists
	return objects.ClaimNames(move)
}
