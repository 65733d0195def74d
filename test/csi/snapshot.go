package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/csi/driver"
)

// Names that the real sidecar shares with the snapshot-controller (external-snapshotter's pkg/utils).
const (
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
	case disposable(content):
		return 0, d.dispose(ctx, content)
	case content.Status != nil && ptr.Deref(content.Status.ReadyToUse, false):
		return 0, d.created(ctx, content)
	}
	found, err := d.find(ctx, content)
	if err != nil {
		return 0, d.complain(ctx, content, err)
	}
	return d.report(ctx, content, found)
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
	call := Call{Verb: DeleteSnapshot, Object: content.Name}
	_, err := driver.Serve(ctx, d.driver, call, func() (*csi.DeleteSnapshotResponse, error) {
		return d.driver.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: handle})
	})
	if err != nil {
		return err
	}
	d.mu.Lock()
	d.deletions[handle]++
	d.mu.Unlock()
	d.settled.Store(content.UID, nil)
	return d.patch(ctx, content, map[string]any{"status": map[string]any{
		"snapshotHandle": nil, "readyToUse": nil, "creationTime": nil, "restoreSize": nil,
	}}, "status")
}

// find returns the snapshot of the content. It creates the snapshot if the source is a volume, and looks it up
// otherwise.
func (d *Driver) find(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (*csi.Snapshot, error) {
	source := content.Spec.Source
	if class := content.Spec.VolumeSnapshotClassName; class != nil {
		if _, err := d.caches.snapshotClasses.Get(*class); err != nil {
			return nil, fmt.Errorf("get snapshot class: %w", err)
		}
	} else if source.SnapshotHandle == nil {
		return nil, fmt.Errorf("content %s has no snapshot class", content.Name)
	}
	if source.SnapshotHandle == nil {
		return d.create(ctx, content, ptr.Deref(source.VolumeHandle, ""))
	}
	handle := *source.SnapshotHandle
	call := Call{Verb: GetSnapshot, Object: content.Name}
	listed, err := driver.Serve(ctx, d.driver, call, func() (*csi.ListSnapshotsResponse, error) {
		return d.driver.ListSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: handle})
	})
	switch {
	case err != nil:
		return nil, err
	case len(listed.Entries) == 0:
		return nil, fmt.Errorf("snapshot %s does not exist", handle)
	default:
		return listed.Entries[0].Snapshot, nil
	}
}

// create creates the snapshot. The content carries a mark in the meantime, which blocks its deletion.
func (d *Driver) create(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, volume string) (*csi.Snapshot, error) {
	if _, marked := content.Annotations[beingCreatedAnnotation]; !marked && content.Status == nil {
		err := d.patch(ctx, content, annotation(beingCreatedAnnotation, "yes"))
		if err != nil {
			return nil, err
		}
	}
	request := &csi.CreateSnapshotRequest{Name: "snapshot-" + string(content.Spec.VolumeSnapshotRef.UID), SourceVolumeId: volume}
	call := Call{Verb: CreateSnapshot, Object: content.Name}
	answer, err := driver.Serve(ctx, d.driver, call, func() (*csi.CreateSnapshotResponse, error) { return d.driver.CreateSnapshot(ctx, request) })
	if err != nil {
		return nil, fmt.Errorf("take snapshot of volume %s: %w", volume, err)
	}
	return answer.Snapshot, nil
}

// created removes the mark of create. If the cache does not have the mark yet, its event triggers another reconcile.
func (d *Driver) created(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	if _, marked := content.Annotations[beingCreatedAnnotation]; !marked {
		return nil
	}
	return d.patch(ctx, content, annotation(beingCreatedAnnotation, nil))
}

// report writes the snapshot into the status and returns the time until it is ready.
func (d *Driver) report(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, found *csi.Snapshot) (time.Duration, error) {
	created := found.CreationTime.AsTime()
	if content.Status == nil || content.Status.SnapshotHandle == nil || found.ReadyToUse || content.Status.Error != nil {
		status := map[string]any{
			"snapshotHandle": found.SnapshotId, "readyToUse": found.ReadyToUse, "creationTime": created.UnixNano(),
			"restoreSize": found.SizeBytes, "error": nil,
		}
		if err := d.patch(ctx, content, map[string]any{"status": status}, "status"); err != nil {
			return 0, err
		}
	}
	if found.ReadyToUse {
		return 0, d.created(ctx, content)
	}
	return max(time.Until(created.Add(d.options.ReadyDelay)), time.Millisecond), d.created(ctx, content)
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
