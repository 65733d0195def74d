package testenv

import (
	"context"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// Bound reports whether a claim is bound to a volume.
func Bound(claim *corev1.PersistentVolumeClaim) bool { return claim.Status.Phase == corev1.ClaimBound }

// ReadyToUse reports whether a snapshot is bound to a content and ready for a restore.
func ReadyToUse(snapshot *snapshotv1.VolumeSnapshot) bool {
	return snapshot.Status != nil && ptr.Deref(snapshot.Status.ReadyToUse, false) && snapshot.Status.BoundVolumeSnapshotContentName != nil
}

// WaitClaim returns the claim after done accepts it, for example Bound.
func (e *Env) WaitClaim(
	ctx context.Context, namespace, name string, done func(*corev1.PersistentVolumeClaim) bool,
) (*corev1.PersistentVolumeClaim, error) {
	return Wait(ctx, e.Kube.CoreV1().PersistentVolumeClaims(namespace), Named(name), done)
}

// WaitClaimGone waits until the claim is deleted.
func (e *Env) WaitClaimGone(ctx context.Context, namespace, name string) error {
	return WaitGone(ctx, e.Kube.CoreV1().PersistentVolumeClaims(namespace), Named(name))
}

// WaitVolume returns the PersistentVolume after done accepts it.
func (e *Env) WaitVolume(ctx context.Context, name string, done func(*corev1.PersistentVolume) bool) (*corev1.PersistentVolume, error) {
	return Wait(ctx, e.Kube.CoreV1().PersistentVolumes(), Named(name), done)
}

// WaitSnapshot returns the VolumeSnapshot after done accepts it, for example ReadyToUse.
func (e *Env) WaitSnapshot(
	ctx context.Context, namespace, name string, done func(*snapshotv1.VolumeSnapshot) bool,
) (*snapshotv1.VolumeSnapshot, error) {
	return Wait(ctx, e.Snapshots.SnapshotV1().VolumeSnapshots(namespace), Named(name), done)
}

// Handle returns the driver's name of the snapshot behind a VolumeSnapshot after the driver has reported it, as
// Velero's server waits for it before it creates a DataUpload. It also returns the VolumeSnapshot as bound.
func (e *Env) Handle(ctx context.Context, snapshot *snapshotv1.VolumeSnapshot) (*snapshotv1.VolumeSnapshot, string, error) {
	bound, err := e.WaitSnapshot(ctx, snapshot.Namespace, snapshot.Name, func(s *snapshotv1.VolumeSnapshot) bool {
		return s.Status != nil && s.Status.BoundVolumeSnapshotContentName != nil
	})
	if err != nil {
		return nil, "", err
	}
	named := Named(*bound.Status.BoundVolumeSnapshotContentName)
	content, err := Wait(ctx, e.Snapshots.SnapshotV1().VolumeSnapshotContents(), named, func(c *snapshotv1.VolumeSnapshotContent) bool {
		return c.Status != nil && c.Status.SnapshotHandle != nil
	})
	if err != nil {
		return nil, "", err
	}
	return bound, *content.Status.SnapshotHandle, nil
}
