package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Names that the real sidecar shares with the snapshot-controller (external-snapshotter's pkg/utils).
const (
	managedByLabel         = "snapshot.storage.kubernetes.io/managed-by"
	contentFinalizer       = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	beingCreatedAnnotation = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
	beingDeletedAnnotation = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
)

// syncContent reconciles one VolumeSnapshotContent as the sidecar csi-snapshotter does. It returns the delay until
// the next reconcile; 0 for none.
func (d *Driver) syncContent(ctx context.Context, name string) (time.Duration, error) {
	content, err := d.caches.contents.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	} else if err != nil {
		return 0, err
	}
	switch {
	case d.options.ManagedBy != "" && content.Labels[managedByLabel] != d.options.ManagedBy:
		return 0, nil
	case disposable(content):
		return 0, d.dispose(ctx, content)
	case content.Status != nil && ptr.Deref(content.Status.ReadyToUse, false):
		return 0, d.created(ctx, content)
	}
	found, handle, err := d.find(ctx, content)
	if err != nil {
		return 0, d.complain(ctx, content, err)
	}
	return d.report(ctx, content, handle, found)
}

// disposable reports whether the content must be deleted, and by its policy the snapshot. The content is being
// deleted, and it never had a VolumeSnapshot, or the snapshot-controller marks the VolumeSnapshot as being deleted. A
// deletion waits for the end of a creation.
func disposable(content *snapshotv1.VolumeSnapshotContent) bool {
	if content.DeletionTimestamp == nil {
		return false
	}
	if content.Spec.Source.SnapshotHandle != nil && content.Spec.VolumeSnapshotRef.UID == "" {
		return true
	}
	_, creating := content.Annotations[beingCreatedAnnotation]
	_, deleting := content.Annotations[beingDeletedAnnotation]
	return deleting && !creating
}

// dispose deletes the handle in the status if the policy requires it, then removes the finalizer. As with the real
// sidecar, a content whose status never had a handle leaves the snapshot behind.
func (d *Driver) dispose(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	deletes := content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete
	_, done := d.settled.Load(content.UID)
	if deletes && !done && content.Status != nil && content.Status.SnapshotHandle != nil {
		if err := d.deleteSnapshot(ctx, *content.Status.SnapshotHandle, content); err != nil {
			d.recorder.Eventf(content, corev1.EventTypeWarning, "SnapshotDeleteError", "Failed to delete snapshot: %v", err)
			return err
		}
	}
	if !slices.Contains(content.Finalizers, contentFinalizer) {
		return nil
	}
	finalizers := slices.DeleteFunc(slices.Clone(content.Finalizers), func(f string) bool { return f == contentFinalizer })
	return d.patch(ctx, content, map[string]any{"metadata": map[string]any{"uid": content.UID, "finalizers": finalizers}})
}

// deleteSnapshot deletes the snapshot and removes its handle from the status, only once per content.
func (d *Driver) deleteSnapshot(ctx context.Context, handle string, content *snapshotv1.VolumeSnapshotContent) error {
	if err := d.ask(ctx, DeleteSnapshot, handle, content.Name); err != nil {
		return err
	}
	if clone := d.store.clone(handle); d.options.ClonesHold && clone != "" {
		return fmt.Errorf("snapshot %s has a clone: volume %s", handle, clone)
	}
	if err := d.store.deleteSnapshot(handle); err != nil {
		return err
	}
	d.settled.Store(content.UID, nil)
	return d.patch(ctx, content, map[string]any{"status": map[string]any{
		"snapshotHandle": nil, "readyToUse": nil, "creationTime": nil, "restoreSize": nil,
	}}, "status")
}

// find returns the snapshot of the content. It creates the snapshot if the source is a volume, and looks it up
// otherwise.
func (d *Driver) find(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (cut, string, error) {
	source := content.Spec.Source
	if class := content.Spec.VolumeSnapshotClassName; class != nil {
		if _, err := d.caches.snapshotClasses.Get(*class); err != nil {
			return cut{}, "", fmt.Errorf("get snapshot class: %w", err)
		}
	} else if source.SnapshotHandle == nil {
		return cut{}, "", fmt.Errorf("content %s has no snapshot class", content.Name)
	}
	if source.SnapshotHandle == nil {
		handle := "snap-" + string(content.Spec.VolumeSnapshotRef.UID)
		found, err := d.create(ctx, content, handle, ptr.Deref(source.VolumeHandle, ""))
		return found, handle, err
	}
	handle := *source.SnapshotHandle
	if err := d.ask(ctx, GetSnapshot, handle, content.Name); err != nil {
		return cut{}, "", err
	}
	found, ok := d.store.snapshot(handle)
	if !ok {
		return cut{}, "", fmt.Errorf("snapshot %s does not exist", handle)
	}
	return found, handle, nil
}

// create creates the snapshot. The content carries a mark in the meantime, which blocks its deletion.
func (d *Driver) create(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, handle, volume string) (cut, error) {
	if _, marked := content.Annotations[beingCreatedAnnotation]; !marked && content.Status == nil {
		err := d.patch(ctx, content, annotation(beingCreatedAnnotation, "yes"))
		if err != nil {
			return cut{}, err
		}
	}
	if err := d.ask(ctx, CreateSnapshot, handle, content.Name); err != nil {
		return cut{}, fmt.Errorf("take snapshot of volume %s: %w", volume, err)
	}
	return d.store.createSnapshot(ctx, handle, volume)
}

// created removes the mark of create. If the cache does not have the mark yet, its event triggers another reconcile.
func (d *Driver) created(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	if _, marked := content.Annotations[beingCreatedAnnotation]; !marked {
		return nil
	}
	return d.patch(ctx, content, annotation(beingCreatedAnnotation, nil))
}

// report writes the snapshot into the status and returns the time until it is ready.
func (d *Driver) report(
	ctx context.Context, content *snapshotv1.VolumeSnapshotContent, handle string, found cut,
) (time.Duration, error) {
	wait := time.Until(found.at.Add(d.options.ReadyDelay))
	ready := wait <= 0
	if content.Status == nil || content.Status.SnapshotHandle == nil || ready || content.Status.Error != nil {
		status := map[string]any{
			"snapshotHandle": handle, "readyToUse": ready, "creationTime": found.at.UnixNano(), "restoreSize": found.size, "error": nil,
		}
		if err := d.patch(ctx, content, map[string]any{"status": status}, "status"); err != nil {
			return 0, err
		}
	}
	return max(wait, 0), d.created(ctx, content)
}

// SetReady ends the ReadyDelay of a snapshot.
func (d *Driver) SetReady(handle string) error {
	d.store.age(handle, d.options.ReadyDelay)
	contents, err := d.caches.contents.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list contents: %w", err)
	}
	for _, content := range contents {
		if content.Status != nil && ptr.Deref(content.Status.SnapshotHandle, "") == handle {
			d.queue.Add(key{kind: contentKind, name: content.Name}) // others have an event of their handle to come
		}
	}
	return nil
}

// complain writes an error into the status and returns it.
func (d *Driver) complain(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, why error) error {
	if ctx.Err() != nil {
		return why
	}
	reason, message := "SnapshotContentCheckandUpdateFailed", fmt.Sprintf("Failed to check and update snapshot content: %v", why)
	if content.Spec.Source.SnapshotHandle == nil {
		reason, message = "SnapshotCreationFailed", fmt.Sprintf("Failed to create snapshot: %v", why)
	}
	if status := content.Status; status != nil && status.Error != nil && ptr.Deref(status.Error.Message, "") == message {
		return errors.Join(why, d.created(ctx, content))
	}
	d.recorder.Event(content, corev1.EventTypeWarning, reason, message)
	reported := map[string]any{"time": metav1.Now(), "message": message}
	err := d.patch(ctx, content, map[string]any{"status": map[string]any{"readyToUse": false, "error": reported}}, "status")
	return errors.Join(why, err, d.created(ctx, content))
}

// patch patches the given fields. A deleted content is no error.
func (d *Driver) patch(
	ctx context.Context, content *snapshotv1.VolumeSnapshotContent, fields map[string]any, subresources ...string,
) error {
	patch, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("write patch of content %s: %w", content.Name, err)
	}
	_, err = d.snapshots.SnapshotV1().VolumeSnapshotContents().
		Patch(ctx, content.Name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("patch content %s: %w", content.Name, err)
	}
	return nil
}

// annotation returns a patch that sets an annotation. A nil value removes it.
func annotation(name string, value any) map[string]any {
	return map[string]any{"metadata": map[string]any{"annotations": map[string]any{name: value}}}
}
