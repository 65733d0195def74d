package handover

import (
	"fmt"
	"slices"

	"github.com/lateen-project/lateen/exposer/objects"
)

// NextCleanup is the next rung of the clean-up, after which neither pair exists and the driver has deleted the handle
// exactly once. It may begin wherever the hand-over stopped. Once the backup content exists it is the one that
// takes the handle with it; until then the original is. What is remembered on an object outlives what it
// remembers: the backup VolumeSnapshot goes after the originals, and an original VolumeSnapshot after its
// content was told to go.
func (h State) NextCleanup() (Step, string) {
	if h.Backup.Snapshot != nil && !h.oursSnapshot() {
		h.Backup.Snapshot = nil
	}
	if h.Backup.Content != nil && !h.oursContent() {
		h.Backup.Content = nil
	}
	if h.isRecreatedSource() {
		h.Original.Snapshot = nil
	}
	if h.Backup.Content == nil {
		return h.undoOriginal()
	}
	if rung := h.detachOriginal(); rung != Finished {
		return rung, ""
	}
	if h.Original.Content != nil {
		return h.deleteContent(DeleteOriginalContent, MarkOriginalContentBeingDeleted, h.Original)
	}
	if h.Original.Snapshot != nil {
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshot %s is being deleted", h.Source)
	}
	return h.undoBackup()
}

// undoBackup deletes a backup pair that alone has the handle. The sidecar deletes no handle that it has not
// yet written into the status of the content, nor that of a content which goes at once for want of a finalizer.
func (h State) undoBackup() (Step, string) {
	content := h.Backup.Content
	switch {
	case objects.IsDeleting(content):
	case handle(content) == "":
		return AwaitSnapshot, h.unread()
	case !slices.Contains(content.Finalizers, finalizerContent):
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshotContent %s waits for the finalizer of the snapshot-controller", h.Name)
	}
	if h.Backup.Snapshot == nil && !markedBeingDeleted(content) && !h.Verified {
		return Reobserve, "" // it may be there, and remember an original that has the handle, too
	}
	if content.Spec.DeletionPolicy != "Delete" {
		return SetDeletePolicyOfBackup, ""
	}
	if h.Backup.Snapshot != nil && !objects.IsDeleting(h.Backup.Snapshot) {
		return DeleteBackup, ""
	}
	return h.deleteContent(DeleteBackupContent, MarkBackupContentBeingDeleted, h.Backup)
}

// unread says that a content has no handle in its status yet. Its driver may have lost the snapshot, and then nothing but
// a person gives it up.
func (h State) unread() string {
	description := fmt.Sprintf("VolumeSnapshotContent %s waits for CSI driver %s to find the snapshot", h.Name, h.Backup.Content.Spec.Driver)
	if status := h.Backup.Content.Status; status != nil && status.Error != nil && status.Error.Message != nil {
		description += ": " + *status.Error.Message
	}
	return description + "; if the driver has lost it, give it up: kubectl delete volumesnapshotcontent " + h.Name
}

// deleteContent gets rid of a content whose VolumeSnapshot is gone or going. With the VolumeSnapshot gone nobody else
// tells the sidecar that it may.
func (h State) deleteContent(remove, free Step, pair SnapshotPair) (Step, string) {
	switch {
	case pair.Snapshot == nil && !markedBeingDeleted(pair.Content):
		return free, ""
	case !objects.IsDeleting(pair.Content) && (pair.Snapshot == nil || pair.Content == h.Original.Content):
		return remove, ""
	}
	return AwaitSnapshot, fmt.Sprintf("VolumeSnapshotContent %s is being deleted by CSI driver %s; see kubectl describe volumesnapshotcontent %s",
		pair.Content.Name, pair.Content.Spec.Driver, pair.Content.Name)
}

// undoOriginal deletes an original pair that alone has the handle. That it is alone has to be known, or the
// handle would be deleted twice.
func (h State) undoOriginal() (Step, string) {
	if h.allDeleting() {
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshot %s is being deleted", h.Source)
	}
	snapshot, content := h.Original.Snapshot, h.Original.Content
	if backup := h.Backup.Snapshot; !h.Verified && backup != nil && objects.IsDeleting(backup) && snapshot == nil && content == nil {
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshot %s/%s is being deleted", h.Namespace, h.Name) // looking is for when it is gone
	}
	if !h.Verified {
		return Reobserve, ""
	}
	switch {
	case content != nil && retained(content):
		return SetDeletePolicyOfOriginal, ""
	case content != nil && snapshot != nil && !objects.IsDeleting(content) && slices.Contains(content.Finalizers, finalizerContent):
		return DeleteOriginalContent, "" // first, while its VolumeSnapshot remembers it
	case snapshot != nil && !objects.IsDeleting(snapshot):
		return DeleteOriginal, ""
	case snapshot != nil:
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshot %s is being deleted", h.Source)
	case content != nil:
		return h.deleteContent(DeleteOriginalContent, MarkOriginalContentBeingDeleted, h.Original)
	case h.Backup.Snapshot != nil && !objects.IsDeleting(h.Backup.Snapshot):
		return DeleteBackup, ""
	case h.Backup.Snapshot != nil:
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshot %s/%s is being deleted", h.Namespace, h.Name)
	}
	return Finished, ""
}

// allDeleting tells whether the original and its content are there and on their way out, so that there is
// nothing to decide.
func (h State) allDeleting() bool {
	snapshot, content := h.Original.Snapshot, h.Original.Content
	return snapshot != nil && objects.IsDeleting(snapshot) && content != nil && objects.IsDeleting(content) && !retained(content)
}
