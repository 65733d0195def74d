package csi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/test/csi/driver"
)

// Names that the real sidecar shares with the snapshot-controller (external-snapshotter's pkg/utils).
const (
	contentFinalizer       = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
	beingCreatedAnnotation = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
	beingDeletedAnnotation = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
)

// snapshotter reconciles VolumeSnapshotContents as the sidecar csi-snapshotter does.
type snapshotter struct {
	*Driver

	queue   workqueue.TypedRateLimitingInterface[string] // names of contents
	settled sync.Map                                     // UIDs of contents whose handle is deleted, maybe not yet in the cache
}

// sync reconciles one VolumeSnapshotContent.
func (s *snapshotter) sync(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	switch {
	case content.Spec.Driver != s.options.Name:
		return nil
	case disposable(content):
		return s.dispose(ctx, content)
	case content.Status != nil && ptr.Deref(content.Status.ReadyToUse, false):
		return s.created(ctx, content)
	}
	found, err := s.find(ctx, content)
	if err != nil {
		return s.complain(ctx, content, err)
	}
	return s.report(ctx, content, found)
}

// disposable reports whether the content must be deleted, and by its policy the snapshot. The content is being deleted, and it never had a
// VolumeSnapshot, or the snapshot-controller marks the VolumeSnapshot as being deleted. A deletion waits for the end of a creation.
func disposable(content *snapshotv1.VolumeSnapshotContent) bool {
	if content.DeletionTimestamp == nil {
		return false
	}
	if content.Spec.Source.SnapshotHandle != nil && content.Spec.VolumeSnapshotRef.UID == "" {
		return true
	}
	creating := metav1.HasAnnotation(content.ObjectMeta, beingCreatedAnnotation)
	return metav1.HasAnnotation(content.ObjectMeta, beingDeletedAnnotation) && !creating
}

// dispose deletes the handle in the status if the policy requires it, then removes the finalizer. As with the real
// sidecar, a content of a group, or one whose status never had a handle, leaves the snapshot behind.
func (s *snapshotter) dispose(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	deletes := content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentDelete
	_, done := s.settled.Load(content.UID)
	if deletes && !done && content.Status != nil && content.Status.SnapshotHandle != nil && content.Status.VolumeGroupSnapshotHandle == nil {
		if err := s.delete(ctx, *content.Status.SnapshotHandle, content); err != nil {
			return err
		}
	}
	if !slices.Contains(content.Finalizers, contentFinalizer) {
		return nil
	}
	finalizers := slices.DeleteFunc(slices.Clone(content.Finalizers), func(f string) bool { return f == contentFinalizer })
	return s.patch(ctx, content, map[string]any{"metadata": map[string]any{"uid": content.UID, "finalizers": finalizers}})
}

// delete deletes the snapshot and removes its handle from the status, only once per content.
func (s *snapshotter) delete(ctx context.Context, handle string, content *snapshotv1.VolumeSnapshotContent) error {
	call, request := driver.Call{Verb: driver.DeleteSnapshot, Object: content.Name}, &csi.DeleteSnapshotRequest{SnapshotId: handle}
	if _, err := driver.Serve(ctx, s.driver, call, s.driver.DeleteSnapshot, request); err != nil {
		return err
	}
	s.lock.Lock()
	s.deletions[handle]++
	s.lock.Unlock()
	s.settled.Store(content.UID, nil)
	return s.patch(ctx, content, map[string]any{"status": map[string]any{
		"snapshotHandle": nil, "readyToUse": nil, "creationTime": nil, "restoreSize": nil,
	}}, "status")
}

// find returns the snapshot of the content. It creates the snapshot if the source is a volume, and looks it up otherwise.
func (s *snapshotter) find(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) (*csi.Snapshot, error) {
	source := content.Spec.Source
	if class := content.Spec.VolumeSnapshotClassName; class != nil {
		if _, err := s.snapshots.SnapshotV1().VolumeSnapshotClasses().Get(ctx, *class, metav1.GetOptions{}); err != nil {
			return nil, fmt.Errorf("get snapshot class: %w", err)
		}
	} else if source.SnapshotHandle == nil {
		return nil, fmt.Errorf("content %s has no snapshot class", content.Name)
	}
	if source.SnapshotHandle == nil {
		return s.create(ctx, content, ptr.Deref(source.VolumeHandle, ""))
	}
	call, request := driver.Call{Verb: driver.GetSnapshot, Object: content.Name}, &csi.ListSnapshotsRequest{SnapshotId: *source.SnapshotHandle}
	listed, err := driver.Serve(ctx, s.driver, call, s.driver.ListSnapshots, request)
	switch {
	case err != nil:
		return nil, err
	case len(listed.Entries) == 0:
		return nil, fmt.Errorf("snapshot %s does not exist", *source.SnapshotHandle)
	default:
		return listed.Entries[0].Snapshot, nil
	}
}

// create creates the snapshot. The content carries a mark in the meantime, which blocks its deletion.
func (s *snapshotter) create(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, volume string) (*csi.Snapshot, error) {
	if !metav1.HasAnnotation(content.ObjectMeta, beingCreatedAnnotation) && content.Status == nil {
		err := s.patch(ctx, content, annotation(beingCreatedAnnotation, "yes"))
		if err != nil {
			return nil, err
		}
	}
	request := &csi.CreateSnapshotRequest{Name: "snapshot-" + string(content.Spec.VolumeSnapshotRef.UID), SourceVolumeId: volume}
	answer, err := driver.Serve(ctx, s.driver, driver.Call{Verb: driver.CreateSnapshot, Object: content.Name}, s.driver.CreateSnapshot, request)
	if err != nil {
		return nil, fmt.Errorf("take snapshot of volume %s: %w", volume, err)
	}
	return answer.Snapshot, nil
}

// created removes the mark of create. If the cache does not have the mark yet, its event triggers another reconcile.
func (s *snapshotter) created(ctx context.Context, content *snapshotv1.VolumeSnapshotContent) error {
	if !metav1.HasAnnotation(content.ObjectMeta, beingCreatedAnnotation) {
		return nil
	}
	return s.patch(ctx, content, annotation(beingCreatedAnnotation, nil))
}

// report writes the snapshot into the status, and looks again when it is ready.
func (s *snapshotter) report(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, found *csi.Snapshot) error {
	created := found.CreationTime.AsTime()
	if content.Status == nil || content.Status.SnapshotHandle == nil || found.ReadyToUse || content.Status.Error != nil {
		status := map[string]any{
			"snapshotHandle": found.SnapshotId, "readyToUse": found.ReadyToUse, "creationTime": created.UnixNano(),
			"restoreSize": found.SizeBytes, "error": nil,
		}
		if err := s.patch(ctx, content, map[string]any{"status": status}, "status"); err != nil {
			return err
		}
	}
	if !found.ReadyToUse {
		s.queue.AddAfter(content.Name, max(time.Until(created.Add(s.options.ReadyDelay)), time.Millisecond))
	}
	return s.created(ctx, content)
}

// complain writes an error into the status and returns it.
func (s *snapshotter) complain(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, why error) error {
	if ctx.Err() != nil {
		return why
	}
	message := fmt.Sprintf("Failed to check and update snapshot content: %v", why)
	if content.Spec.Source.SnapshotHandle == nil {
		message = fmt.Sprintf("Failed to create snapshot: %v", why)
	}
	if status := content.Status; status != nil && status.Error != nil && ptr.Deref(status.Error.Message, "") == message {
		return errors.Join(why, s.created(ctx, content))
	}
	reported := map[string]any{"time": metav1.Now(), "message": message}
	err := s.patch(ctx, content, map[string]any{"status": map[string]any{"readyToUse": false, "error": reported}}, "status")
	return errors.Join(why, err, s.created(ctx, content))
}

// patch patches the given fields. A deleted content is no error.
func (s *snapshotter) patch(ctx context.Context, content *snapshotv1.VolumeSnapshotContent, fields map[string]any, subresources ...string) error {
	patch, err := json.Marshal(fields)
	if err != nil {
		return fmt.Errorf("write patch of content %s: %w", content.Name, err)
	}
	_, err = s.snapshots.SnapshotV1().VolumeSnapshotContents().
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
