package testenv

import (
	"context"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// Bound reports whether a claim is bound to a volume.
func Bound(claim *corev1.PersistentVolumeClaim) bool { return claim.Status.Phase == corev1.ClaimBound }

// ReadyToUse reports whether a snapshot is bound to a content and ready for a restore.
func ReadyToUse(snapshot *snapshotv1.VolumeSnapshot) bool {
	return snapshot.Status != nil && ptr.Deref(snapshot.Status.ReadyToUse, false) && snapshot.Status.BoundVolumeSnapshotContentName != nil
}

// watched is a client that can list and watch; L is the list type.
type watched[L metav1.ListInterface] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// waitFor returns the object with that name after done accepts it. The error contains the last observed object.
func waitFor[T apiruntime.Object, L metav1.ListInterface](
	ctx context.Context, client watched[L], kind, name string, done func(T) bool,
) (T, error) {
	var none T
	watcher, err := client.Watch(ctx, named(name))
	if err != nil {
		return none, fmt.Errorf("watch %s %s: %w", kind, name, err)
	}
	found, err := await(ctx, watcher, done)
	if err != nil {
		return none, fmt.Errorf("wait for %s %s: %w", kind, name, err)
	}
	return found, nil
}

// waitGone waits until no object has that name; count returns the length of a list.
func waitGone[L metav1.ListInterface](ctx context.Context, client watched[L], kind, name string, count func(L) int) error {
	options := named(name)
	list, err := client.List(ctx, options)
	if err != nil {
		return fmt.Errorf("list %s %s: %w", kind, name, err)
	}
	if count(list) == 0 {
		return nil
	}
	options.ResourceVersion = list.GetResourceVersion()
	watcher, err := client.Watch(ctx, options)
	if err != nil {
		return fmt.Errorf("watch %s %s: %w", kind, name, err)
	}
	return awaitDeletion(ctx, watcher, kind+" "+name)
}

// WaitNamespaceGone waits until the namespace and its content are deleted.
func (w *Env) WaitNamespaceGone(ctx context.Context, name string) error {
	return waitGone(ctx, w.Kube.CoreV1().Namespaces(), "namespace", name, func(l *corev1.NamespaceList) int { return len(l.Items) })
}

// WaitClaim returns the claim after done accepts it, for example Bound.
func (w *Env) WaitClaim(
	ctx context.Context, namespace, name string, done func(*corev1.PersistentVolumeClaim) bool,
) (*corev1.PersistentVolumeClaim, error) {
	return waitFor(ctx, w.Kube.CoreV1().PersistentVolumeClaims(namespace), "claim", name, done)
}

// WaitClaimGone waits until the claim is deleted.
func (w *Env) WaitClaimGone(ctx context.Context, namespace, name string) error {
	return waitGone(ctx, w.Kube.CoreV1().PersistentVolumeClaims(namespace), "claim", name,
		func(l *corev1.PersistentVolumeClaimList) int { return len(l.Items) })
}

// WaitVolume returns the PersistentVolume after done accepts it.
func (w *Env) WaitVolume(
	ctx context.Context, name string, done func(*corev1.PersistentVolume) bool,
) (*corev1.PersistentVolume, error) {
	return waitFor(ctx, w.Kube.CoreV1().PersistentVolumes(), "volume", name, done)
}

// WaitVolumeGone waits until the PersistentVolume is deleted. By then, the driver has deleted the bytes, unless the
// policy is Retain.
func (w *Env) WaitVolumeGone(ctx context.Context, name string) error {
	return waitGone(ctx, w.Kube.CoreV1().PersistentVolumes(), "volume", name,
		func(l *corev1.PersistentVolumeList) int { return len(l.Items) })
}

// WaitSnapshot returns the VolumeSnapshot after done accepts it, for example ReadyToUse.
func (w *Env) WaitSnapshot(
	ctx context.Context, namespace, name string, done func(*snapshotv1.VolumeSnapshot) bool,
) (*snapshotv1.VolumeSnapshot, error) {
	return waitFor(ctx, w.Snapshots.SnapshotV1().VolumeSnapshots(namespace), "snapshot", name, done)
}

// WaitSnapshotGone waits until the VolumeSnapshot is deleted.
func (w *Env) WaitSnapshotGone(ctx context.Context, namespace, name string) error {
	return waitGone(ctx, w.Snapshots.SnapshotV1().VolumeSnapshots(namespace), "snapshot", name,
		func(l *snapshotv1.VolumeSnapshotList) int { return len(l.Items) })
}

// WaitContent returns the VolumeSnapshotContent after done accepts it.
func (w *Env) WaitContent(
	ctx context.Context, name string, done func(*snapshotv1.VolumeSnapshotContent) bool,
) (*snapshotv1.VolumeSnapshotContent, error) {
	return waitFor(ctx, w.Snapshots.SnapshotV1().VolumeSnapshotContents(), "content", name, done)
}

// WaitContentGone waits until the VolumeSnapshotContent is deleted. By then, the driver has deleted the snapshot
// behind the handle, unless the policy is Retain.
func (w *Env) WaitContentGone(ctx context.Context, name string) error {
	return waitGone(ctx, w.Snapshots.SnapshotV1().VolumeSnapshotContents(), "content", name,
		func(l *snapshotv1.VolumeSnapshotContentList) int { return len(l.Items) })
}
