// Package handover decides, one step at a time, how a volume snapshot passes from the namespace of its volume to that
// of its data mover, and how that is undone. It never calls the API server, reads a clock or keeps anything.
package handover

import (
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Step is the next thing to do for a snapshot. Each is safe to do twice, and one after which the agent may
// die.
type Step int

// The steps of the hand-over and of its clean-up.
const (
	Finished                        Step = iota // nothing is left to do
	Reobserve                                   // ask the API server for what the caches do not have
	AwaitSnapshot                               // something else has to happen first; the words say what
	Fail                                        // it can never be done; the words say why
	NameConflict                                // something of somebody else has the name; the words say what
	CreateSnapshot                              // create the backup VolumeSnapshot
	CreateContent                               // create its content
	AdoptSnapshot                               // make a backup VolumeSnapshot of Velero's agent ours
	AdoptContent                                // make its content ours
	RetainOriginal                              // let the original content be deleted without the handle
	DeleteOriginal                              // delete the original VolumeSnapshot; of a hand-over, rehearse before
	DeleteOriginalContent                       // delete the original content
	SetDeletePolicyOfOriginal                   // let the original content take the handle with it
	MarkOriginalContentBeingDeleted             // let the sidecar delete an original content that has lost its VolumeSnapshot
	SetDeletePolicyOfBackup                     // let the backup content take the handle with it
	MarkBackupContentBeingDeleted               // let the sidecar delete a backup content that has lost its VolumeSnapshot
	DeleteBackup                                // delete the backup VolumeSnapshot
	DeleteBackupContent                         // delete the backup content
)

func (r Step) String() string {
	names := [...]string{
		"Finished", "Reobserve", "AwaitSnapshot", "Fail", "NameConflict", "CreateSnapshot", "CreateContent", "AdoptSnapshot",
		"AdoptContent", "RetainOriginal", "DeleteOriginal", "DeleteOriginalContent", "SetDeletePolicyOfOriginal",
		"MarkOriginalContentBeingDeleted", "SetDeletePolicyOfBackup", "MarkBackupContentBeingDeleted", "DeleteBackup",
		"DeleteBackupContent",
	}
	if r < 0 || int(r) >= len(names) {
		return fmt.Sprintf("Step(%d)", int(r))
	}
	return names[r]
}

// Next is the next step of the hand-over, with words where there is something to say. The order is such that
// after each step some content with the handle exists that is the original, or retained, or ours: first the
// handle gets a second owner, then the first one is told to leave it alone, then the first one goes.
func (h State) Next() (Step, string) {
	if description := h.nameConflict(); description != "" {
		return NameConflict, description
	}
	if h.isRecreatedSource() {
		h.Original.Snapshot = nil
	}
	switch {
	case h.Backup.Content != nil:
		return h.deleteOriginals()
	case h.Backup.Snapshot != nil:
		return h.createBackupPair(CreateContent)
	default:
		return h.begin()
	}
}

// fail is for what can never be done as far as the caches know; they may lag behind.
func (h State) fail(format string, description ...any) (Step, string) {
	if !h.Verified && (h.Original.Snapshot == nil || h.Original.Content == nil || h.Backup.Snapshot == nil || h.Backup.Content == nil) {
		return Reobserve, ""
	}
	return Fail, fmt.Sprintf(format, description...)
}

func (h State) begin() (Step, string) {
	original := h.Original.Snapshot
	switch {
	case original == nil:
		return h.fail("VolumeSnapshot %s does not exist", h.Source)
	case objects.IsDeleting(original):
		return h.fail("VolumeSnapshot %s is being deleted", h.Source)
	case !ready(original):
		return AwaitSnapshot, notReady(original)
	}
	return h.createBackupPair(CreateSnapshot)
}

// createBackupPair says what to do for a handle that has only one owner yet: the first of what makes another, or
// why not.
func (h State) createBackupPair(first Step) (Step, string) {
	content, name := h.Original.Content, h.SourceContent()
	switch {
	case h.Backup.Snapshot != nil && objects.IsDeleting(h.Backup.Snapshot):
		return h.fail("VolumeSnapshot %s/%s is being deleted", h.Namespace, h.Name)
	case content == nil:
		return h.fail("VolumeSnapshotContent %s of VolumeSnapshot %s does not exist", name, h.Source)
	case (objects.IsDeleting(content) || markedBeingDeleted(content)) && !retained(content):
		return h.fail("VolumeSnapshotContent %s of VolumeSnapshot %s is being deleted", name, h.Source)
	case content.Spec.VolumeSnapshotRef.Namespace != h.Source.Namespace || content.Spec.VolumeSnapshotRef.Name != h.Source.Name:
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshotContent %s is not bound to VolumeSnapshot %s", name, h.Source)
	case handle(content) == "":
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshotContent %s has no snapshot handle yet", name)
	case h.Backup.Snapshot != nil && h.Backup.Snapshot.Labels[objects.LabelOwnerUID] == "":
		return AdoptSnapshot, ""
	}
	return first, ""
}

// deleteOriginals retires the originals of a handle that has its second owner.
func (h State) deleteOriginals() (Step, string) {
	backup, content := h.Backup.Snapshot, h.Backup.Content
	switch {
	case backup == nil:
		return h.fail("VolumeSnapshot %s/%s is gone although the snapshot was handed to it", h.Namespace, h.Name)
	case objects.IsDeleting(backup):
		return h.fail("VolumeSnapshot %s/%s is being deleted", h.Namespace, h.Name)
	case objects.IsDeleting(content):
		return h.fail("VolumeSnapshotContent %s is being deleted", h.Name)
	case content.Spec.VolumeSnapshotRef.UID != "" && content.Spec.VolumeSnapshotRef.UID != backup.UID:
		return h.fail("VolumeSnapshotContent %s is bound to an earlier VolumeSnapshot of the same name", h.Name)
	case backup.Labels[objects.LabelOwnerUID] == "":
		return AdoptSnapshot, ""
	case content.Labels[objects.LabelOwnerUID] == "":
		return AdoptContent, ""
	}
	if rung := h.detachOriginal(); rung != Finished {
		return rung, ""
	}
	if original := h.Original.Content; original != nil && !objects.IsDeleting(original) {
		return DeleteOriginalContent, ""
	}
	return Finished, ""
}

// detachOriginal is what has to be done before the original content goes: it must leave the handle alone before
// anything is deleted, and it must be known to before its VolumeSnapshot is, which takes it along.
func (h State) detachOriginal() Step {
	snapshot, content := h.Original.Snapshot, h.Original.Content
	switch {
	case content != nil && !retained(content):
		return RetainOriginal
	case snapshot == nil || objects.IsDeleting(snapshot):
		return Finished
	case content == nil && !h.Verified:
		return Reobserve
	}
	return DeleteOriginal
}

func (h State) nameConflict() string {
	switch {
	case h.Backup.Snapshot != nil && !h.oursSnapshot():
		return fmt.Sprintf("VolumeSnapshot %s/%s exists and belongs to something else; delete it to let the transfer go on", h.Namespace, h.Name)
	case h.Backup.Content != nil && !h.oursContent():
		return fmt.Sprintf("VolumeSnapshotContent %s exists and belongs to something else; delete it to let the transfer go on", h.Name)
	}
	return ""
}

func ready(snapshot *snapshotv1.VolumeSnapshot) bool {
	status := snapshot.Status
	return status != nil && status.ReadyToUse != nil && *status.ReadyToUse && status.BoundVolumeSnapshotContentName != nil
}

// notReady says why, in the driver's words if there are any.
func notReady(snapshot *snapshotv1.VolumeSnapshot) string {
	description := fmt.Sprintf("VolumeSnapshot %s/%s is not ready", snapshot.Namespace, snapshot.Name)
	if status := snapshot.Status; status != nil && status.Error != nil && status.Error.Message != nil {
		description += ": " + *status.Error.Message
	}
	return description
}
