package world

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

// Bound says that a claim has its volume.
func Bound(claim *corev1.PersistentVolumeClaim) bool { return claim.Status.Phase == corev1.ClaimBound }

// ReadyToUse says that a snapshot is bound to a content and can be restored.
func ReadyToUse(snapshot *snapshotv1.VolumeSnapshot) bool {
	return snapshot.Status != nil && ptr.Deref(snapshot.Status.ReadyToUse, false) && snapshot.Status.BoundVolumeSnapshotContentName != nil
}

// watched is a client whose objects can be waited for; L is their list.
type watched[L metav1.ListInterface] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// waitFor returns the object of that name once done says so of it. The error has what was seen last.
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

// waitGone returns once there is no object of that name; count is how many a list has.
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

// WaitNamespaceGone returns once the namespace does not exist, nor anything in it.
func (w *World) WaitNamespaceGone(ctx context.Context, name string) error {
	return waitGone(ctx, w.Kube.CoreV1().Namespaces(), "namespace", name, func(l *corev1.NamespaceList) int { return len(l.Items) })
}

// WaitClaim returns the claim once done says so of it, for example Bound.
func (w *World) WaitClaim(
	ctx context.Context, namespace, name string, done func(*corev1.PersistentVolumeClaim) bool,
) (*corev1.PersistentVolumeClaim, error) {
	return waitFor(ctx, w.Kube.CoreV1().PersistentVolumeClaims(namespace), "claim", name, done)
}

// WaitClaimGone returns once the claim does not exist.
func (w *World) WaitClaimGone(ctx context.Context, namespace, name string) error {
	return waitGone(ctx, w.Kube.CoreV1().PersistentVolumeClaims(namespace), "claim", name,
		func(l *corev1.PersistentVolumeClaimList) int { return len(l.Items) })
}

// WaitVolume returns the PersistentVolume once done says so of it.
func (w *World) WaitVolume(
	ctx context.Context, name string, done func(*corev1.PersistentVolume) bool,
) (*corev1.PersistentVolume, error) {
	return waitFor(ctx, w.Kube.CoreV1().PersistentVolumes(), "volume", name, done)
}

// WaitVolumeGone returns once the PersistentVolume does not exist. Its driver has deleted the bytes by then, unless it
// was to retain them.
func (w *World) WaitVolumeGone(ctx context.Context, name string) error {
	return waitGone(ctx, w.Kube.CoreV1().PersistentVolumes(), "volume", name,
		func(l *corev1.PersistentVolumeList) int { return len(l.Items) })
}

// WaitSnapshot returns the VolumeSnapshot once done says so of it, for example ReadyToUse.
func (w *World) WaitSnapshot(
	ctx context.Context, namespace, name string, done func(*snapshotv1.VolumeSnapshot) bool,
) (*snapshotv1.VolumeSnapshot, error) {
	return waitFor(ctx, w.Snapshots.SnapshotV1().VolumeSnapshots(namespace), "snapshot", name, done)
}

// WaitSnapshotGone returns once the VolumeSnapshot does not exist.
func (w *World) WaitSnapshotGone(ctx context.Context, namespace, name string) error {
	return waitGone(ctx, w.Snapshots.SnapshotV1().VolumeSnapshots(namespace), "snapshot", name,
		func(l *snapshotv1.VolumeSnapshotList) int { return len(l.Items) })
}

// WaitContent returns the VolumeSnapshotContent once done says so of it.
func (w *World) WaitContent(
	ctx context.Context, name string, done func(*snapshotv1.VolumeSnapshotContent) bool,
) (*snapshotv1.VolumeSnapshotContent, error) {
	return waitFor(ctx, w.Snapshots.SnapshotV1().VolumeSnapshotContents(), "content", name, done)
}

// WaitContentGone returns once the VolumeSnapshotContent does not exist. Its driver has deleted the handle by then,
// unless it was to retain it.
func (w *World) WaitContentGone(ctx context.Context, name string) error {
	return waitGone(ctx, w.Snapshots.SnapshotV1().VolumeSnapshotContents(), "content", name,
		func(l *snapshotv1.VolumeSnapshotContentList) int { return len(l.Items) })
}
