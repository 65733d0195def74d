package exposer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/handover"
	"github.com/lateen-project/lateen/exposer/objects"
)

// maxHandoverSteps bounds the steps of one call; a hand-over or cleanup takes fewer.
const maxHandoverSteps = 16

// handoverRun is one run of a hand-over or its cleanup. It starts from the caches and continues with the responses
// to its own requests, so it does not wait for its own events.
type handoverRun struct {
	handover.State
	client  snapshotclient.SnapshotV1Interface
	deleted func(metav1.Object) // records deleted objects

	handedOver bool // this process deleted the original VolumeSnapshot
}

func (e *Exposer) runHandover(spec objects.MoverSpec) *handoverRun {
	source := spec.Source.Snapshot
	c := &handoverRun{client: e.Snapshots.Client(), deleted: e.Snapshots.Deleted, State: handover.State{
		Namespace: spec.Namespace, Name: spec.Name, UID: spec.UID, ExposingNode: spec.ExposingNode,
		Source: types.NamespacedName{Namespace: source.Namespace, Name: source.Snapshot}, KeepsRetained: spec.BlockMover,
	}}
	c.Backup.Snapshot = e.Snapshots.Snapshot(c.Namespace, c.Name)
	c.Backup.Content = e.Snapshots.Content(c.Name)
	c.LoadSource()
	if c.Source.Name != "" {
		c.Original.Snapshot = e.Snapshots.Snapshot(c.Source.Namespace, c.Source.Name)
	}
	if name := c.SourceContent(); name != "" {
		c.Original.Content = e.Snapshots.Content(name)
	}
	return c
}

// step executes one step. An object that is not found counts as deleted.
func (h *handoverRun) step(ctx context.Context, step handover.Step) (err error) {
	original, backup := &h.Original, &h.Backup
	switch step {
	case handover.Reobserve:
		return h.observe(ctx)
	case handover.CreateSnapshot:
		backup.Snapshot, err = getOrCreate(ctx, h.snapshots(h.Namespace), h.BackupSnapshot())
		return wrapCreate(h.describe(step), err)
	case handover.CreateContent:
		backup.Content, err = getOrCreate(ctx, h.contents(), h.BackupContent())
		return wrapCreate(h.describe(step), err)
	case handover.AdoptSnapshot:
		backup.Snapshot, err = patch(ctx, h.snapshots(h.Namespace), backup.Snapshot, change{Labels: h.OwnerLabels(), Annotations: h.Annotations()})
	case handover.AdoptContent:
		to := change{Labels: h.OwnerLabels()}
		if !h.KeepsRetained { // Velero's next version copies the policy of the class for each data mover
			to.Policy = snapshotv1.VolumeSnapshotContentDelete
		}
		backup.Content, err = patch(ctx, h.contents(), backup.Content, to)
	case handover.RetainOriginal:
		original.Content, err = patch(ctx, h.contents(), original.Content, change{Policy: snapshotv1.VolumeSnapshotContentRetain})
	case handover.SetDeletePolicyOfOriginal:
		original.Content, err = patch(ctx, h.contents(), original.Content, change{Policy: snapshotv1.VolumeSnapshotContentDelete})
	case handover.SetHandleOfBackup:
		backup.Content, err = withHandle(ctx, h.contents(), backup.Content)
	case handover.ReleaseBackupContent:
		backup.Content, err = patch(ctx, h.contents(), backup.Content, change{Labels: h.NoOwnerLabels()})
	case handover.MarkOriginalContentBeingDeleted:
		original.Content, err = patch(ctx, h.contents(), original.Content, change{Annotations: handover.MarkedBeingDeleted()})
	case handover.MarkBackupContentBeingDeleted:
		backup.Content, err = patch(ctx, h.contents(), backup.Content, change{Annotations: handover.MarkedBeingDeleted()})
	case handover.DeleteOriginal:
		original.Snapshot, err = deleteTracked(ctx, h, h.snapshots(h.Source.Namespace), original.Snapshot)
	case handover.DeleteOriginalContent:
		original.Content, err = deleteTracked(ctx, h, h.contents(), original.Content)
	case handover.DeleteBackup:
		backup.Snapshot, err = deleteTracked(ctx, h, h.snapshots(h.Namespace), backup.Snapshot)
	case handover.DeleteBackupContent:
		backup.Content, err = deleteTracked(ctx, h, h.contents(), backup.Content)
	default:
		err = errors.New("unknown step")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", h.describe(step), err)
	}
	return nil
}

func (h *handoverRun) describe(step handover.Step) string {
	return fmt.Sprintf("run step %s of snapshot %s for %s/%s", step, h.Source, h.Namespace, h.Name)
}

// observe GETs what the caches do not have. It skips the backup content if neither VolumeSnapshot exists. That
// content is created after the backup VolumeSnapshot, which is deleted only when its content is known to be deleted
// too.
func (h *handoverRun) observe(ctx context.Context) (err error) {
	h.Verified = true
	if h.Backup.Snapshot == nil {
		if h.Backup.Snapshot, err = get(ctx, h.snapshots(h.Namespace), h.Name); err != nil {
			return fmt.Errorf("get VolumeSnapshot %s/%s: %w", h.Namespace, h.Name, err)
		}
	}
	h.LoadSource()
	if h.Original.Snapshot == nil && h.Source.Name != "" && !h.handedOver {
		if h.Original.Snapshot, err = get(ctx, h.snapshots(h.Source.Namespace), h.Source.Name); err != nil {
			return fmt.Errorf("get VolumeSnapshot %s: %w", h.Source, err)
		}
	}
	if h.Backup.Content == nil && (h.Backup.Snapshot != nil || h.Original.Snapshot != nil) {
		if h.Backup.Content, err = get(ctx, h.contents(), h.Name); err != nil {
			return fmt.Errorf("get VolumeSnapshotContent %s: %w", h.Name, err)
		}
	}
	if name := h.SourceContent(); h.Original.Content == nil && name != "" {
		if h.Original.Content, err = get(ctx, h.contents(), name); err != nil {
			return fmt.Errorf("get VolumeSnapshotContent %s: %w", name, err)
		}
	}
	return nil
}

func (h *handoverRun) snapshots(namespace string) client[*snapshotv1.VolumeSnapshot] {
	return h.client.VolumeSnapshots(namespace)
}

func (h *handoverRun) contents() client[*snapshotv1.VolumeSnapshotContent] {
	return h.client.VolumeSnapshotContents()
}

// change is the content of a merge patch.
type change struct {
	Labels      any // a map; nil is a label to remove
	Annotations map[string]string
	Policy      snapshotv1.DeletionPolicy
}

// patch returns the merge patch for the object with that UID. A recreated object of the same name is not changed,
// because a UID is immutable.
func (c change) patch(uid types.UID) ([]byte, error) {
	type metadata struct {
		UID         types.UID         `json:"uid"`
		Labels      any               `json:"labels,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	type spec struct {
		DeletionPolicy snapshotv1.DeletionPolicy `json:"deletionPolicy,omitempty"`
	}
	return json.Marshal(struct {
		Metadata metadata `json:"metadata"`
		Spec     spec     `json:"spec,omitzero"`
	}{metadata{uid, c.Labels, c.Annotations}, spec{c.Policy}})
}

// patch returns the object after a merge patch, or nil if it does not exist.
func patch[S any, T object[S]](ctx context.Context, at client[T], was T, to change) (T, error) {
	data, err := to.patch(was.GetUID())
	if err != nil {
		return was, fmt.Errorf("encode patch: %w", err)
	}
	now, err := at.Patch(ctx, was.GetName(), types.MergePatchType, data, metav1.PatchOptions{})
	if err != nil {
		return ifFound(was, err), ignoreNotFound(err)
	}
	return now, nil
}

// withHandle returns the content after the handle of its source was written into its status, or nil if it does not
// exist. A content that changed in the meantime is a conflict: the sidecar may have deleted the snapshot.
func withHandle(ctx context.Context, at client[*snapshotv1.VolumeSnapshotContent], was *snapshotv1.VolumeSnapshotContent) (*snapshotv1.VolumeSnapshotContent, error) {
	now, err := mergePatch(ctx, at, was.Name, map[string]any{
		"metadata": map[string]any{"resourceVersion": was.ResourceVersion},
		"status":   map[string]any{"snapshotHandle": was.Spec.Source.SnapshotHandle},
	}, "status")
	if err != nil {
		return ifFound(was, err), ignoreNotFound(err)
	}
	return now, nil
}

// deleteTracked deletes an object and records that, so that the caches return it as deleting at once.
func deleteTracked[S any, T object[S]](ctx context.Context, c *handoverRun, from client[T], was T) (T, error) {
	now, err := deleteExact(ctx, from, was)
	if err == nil {
		c.deleted(was)
	}
	return now, err
}

// Snapshots reads and changes volume snapshots.
type Snapshots interface {
	// Available reports whether the cluster has VolumeSnapshots. If so, the caches below are complete when it
	// returns. An error means that it is not known.
	Available(ctx context.Context) (bool, error)
	// Snapshot returns a cached VolumeSnapshot, or nil.
	Snapshot(namespace, name string) *snapshotv1.VolumeSnapshot
	// Content returns a cached VolumeSnapshotContent, or nil.
	Content(name string) *snapshotv1.VolumeSnapshotContent
	// Deleted records that a snapshot or content was deleted; the caches return it as deleting from now on.
	Deleted(object metav1.Object)
	// Client changes snapshots and contents, and reads what must not be stale.
	Client() snapshotclient.SnapshotV1Interface
}

// handOver gives the snapshot handle a second owner in Velero's namespace and deletes the originals. It runs until
// it must wait, and returns what for, or until the originals are deleting.
func (e *Exposer) handOver(ctx context.Context, spec objects.MoverSpec) (waits string, handed handover.State, err error) {
	served, err := e.served(ctx)
	switch {
	case err != nil:
		return "", handed, err
	case !served:
		return "", handed, &TerminalError{errors.New("snapshot.storage.k8s.io is not installed")}
	}
	run := e.runHandover(spec)
	for range maxHandoverSteps {
		step, description := run.Next()
		switch step {
		case handover.Finished:
			return "", run.State, nil
		case handover.AwaitSnapshot:
			return description, handed, nil
		case handover.Fail:
			return "", handed, &TerminalError{errors.New(description)}
		case handover.NameConflict:
			return "", handed, errors.New(description)
		default: // a failure of these steps loses nothing
		}
		if err := run.step(ctx, step); err != nil {
			return "", handed, err
		}
	}
	return "", handed, fmt.Errorf("hand over snapshot %s: too many steps", run.Source)
}

// changedBlocks returns what identifies a snapshot that a block mover reads; nil for other movers.
func changedBlocks(spec objects.MoverSpec, info objects.VolumeInfo, handed handover.State) (*objects.ChangedBlocks, error) {
	source := spec.Source.Snapshot
	if !spec.BlockMover || source == nil {
		return nil, nil //nolint:nilnil // another mover
	}
	changes := handed.ChangedBlocks(info.Handle)
	if changes.Volume == "" {
		return nil, &TerminalError{fmt.Errorf("find the changed blocks of claim %s/%s: its volume has no CSI handle; run the backup with another data mover",
			source.Namespace, source.Claim)}
	}
	return changes, nil
}

// CleanUpSnapshots deletes both pairs of VolumeSnapshot and content from any point of a hand-over, as far as possible. waits
// says what blocks it; empty means that nothing is left. handedOver reports that this process deleted the original
// VolumeSnapshot, so a cache miss needs no GET.
func (e *Exposer) CleanUpSnapshots(ctx context.Context, spec objects.MoverSpec, handedOver bool) (waits string, err error) {
	served, err := e.served(ctx)
	if err != nil || !served {
		return "", err
	}
	run := e.runHandover(spec)
	run.handedOver = handedOver
	for range maxHandoverSteps {
		step, description := run.NextCleanup()
		switch step {
		case handover.Finished:
			return "", nil
		case handover.AwaitSnapshot:
			return description, nil
		default:
			if err := run.step(ctx, step); err != nil {
				return "", err
			}
		}
	}
	return "", fmt.Errorf("delete snapshot %s: too many steps", run.Source)
}

// RemoveOrphan deletes what is left of a hand-over whose custom resource is deleted or terminal. orphan is a backup
// VolumeSnapshot or its content. A content has no namespace, so namespace is Velero's. The caller repeats it until
// nothing is left.
func (e *Exposer) RemoveOrphan(ctx context.Context, namespace string, orphan metav1.Object) error {
	_, err := e.CleanUpSnapshots(ctx, objects.MoverSpec{
		Namespace: namespace, Name: orphan.GetName(), UID: types.UID(orphan.GetLabels()[api.LabelOwnerUID]),
		Source: objects.Source{Snapshot: &objects.SnapshotSource{}}, // the backup VolumeSnapshot's annotations name it
	}, false)
	return err
}

// diagnoseSnapshots returns what blocks the hand-over. A new coordinator may have no snapshot caches yet.
func (e *Exposer) diagnoseSnapshots(ctx context.Context, spec objects.MoverSpec) string {
	if served, err := e.served(ctx); err != nil || !served {
		return ""
	}
	run := e.runHandover(spec)
	if step, description := run.Next(); step == handover.AwaitSnapshot || step == handover.Fail || step == handover.NameConflict {
		return description
	}
	if backup := run.Backup.Snapshot; backup != nil && backup.Status != nil && backup.Status.Error != nil && backup.Status.Error.Message != nil {
		return fmt.Sprintf("VolumeSnapshot %s/%s: %s", backup.Namespace, backup.Name, *backup.Status.Error.Message)
	}
	return ""
}

func (e *Exposer) served(ctx context.Context) (bool, error) {
	if e.Snapshots == nil {
		return false, nil
	}
	return e.Snapshots.Available(ctx)
}
