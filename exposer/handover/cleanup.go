package handover

import (
	"fmt"
	"slices"

	"github.com/lateen-project/lateen/exposer/objects"
)

// NextCleanup returns the next step of the cleanup. In the end neither pair exists, and the driver has deleted the
// handle exactly once. The cleanup may start from any point of the hand-over. If the backup content exists, its
// deletion also deletes the handle; otherwise the deletion of the original content does. An object with annotations
// about another one is deleted after that one. So the backup VolumeSnapshot is deleted after the originals. An
// original VolumeSnapshot is deleted after its content is deleting.
func (s State) NextCleanup() (Step, string) {
	if s.Backup.Snapshot != nil && !s.oursSnapshot() {
		s.Backup.Snapshot = nil
	}
	if s.Backup.Content != nil && !s.oursContent() {
		s.Backup.Content = nil
	}
	if s.isRecreatedSource() {
		s.Original.Snapshot = nil
	}
	if s.Backup.Content == nil {
		return s.undoOriginal()
	}
	if step := s.detachOriginal(); step != Finished {
		return step, ""
	}
	if s.Original.Content != nil {
		return s.deleteContent(DeleteOriginalContent, MarkOriginalContentBeingDeleted, s.Original)
	}
	if s.Original.Snapshot != nil {
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshot %s is being deleted", s.Source)
	}
	return s.undoBackup()
}

// undoBackup deletes a backup pair that is the only owner of the handle. The sidecar deletes a handle only if the
// status of the content contains it, and writes it there only if the driver finds the snapshot. A snapshot that was
// deleted before, for example with the namespace of its volume, is never found. So this step writes the handle: to
// delete a snapshot that does not exist succeeds (CSI, DeleteSnapshot). The sidecar also deletes no handle of a
// content without a finalizer, because that content vanishes at once.
func (s State) undoBackup() (Step, string) {
	content := s.Backup.Content
	switch {
	case objects.IsDeleting(content):
	case handle(content) == "":
		return SetHandleOfBackup, ""
	case !slices.Contains(content.Finalizers, finalizerContent):
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshotContent %s has no finalizer of the snapshot-controller yet", s.Name)
	}
	if s.Backup.Snapshot == nil && !markedBeingDeleted(content) && !s.Verified {
		return Reobserve, "" // a backup VolumeSnapshot may exist and name an original that owns the handle too
	}
	if content.Spec.DeletionPolicy != "Delete" {
		return SetDeletePolicyOfBackup, ""
	}
	if s.Backup.Snapshot != nil && !objects.IsDeleting(s.Backup.Snapshot) {
		return DeleteBackup, ""
	}
	return s.deleteContent(DeleteBackupContent, MarkBackupContentBeingDeleted, s.Backup)
}

// deleteContent deletes a content whose VolumeSnapshot is deleted or deleting. Without a VolumeSnapshot no
// controller marks the content for the sidecar, so this step does.
func (s State) deleteContent(remove, free Step, pair SnapshotPair) (Step, string) {
	switch {
	case pair.Snapshot == nil && !markedBeingDeleted(pair.Content):
		return free, ""
	case !objects.IsDeleting(pair.Content) && (pair.Snapshot == nil || pair.Content == s.Original.Content):
		return remove, ""
	}
	return AwaitSnapshot, fmt.Sprintf("VolumeSnapshotContent %s is being deleted by CSI driver %s; see kubectl describe volumesnapshotcontent %s",
		pair.Content.Name, pair.Content.Spec.Driver, pair.Content.Name)
}

// undoOriginal deletes an original pair that is the only owner of the handle. It must verify that no backup pair
// exists: otherwise the handle would be deleted twice.
func (s State) undoOriginal() (Step, string) {
	if s.allDeleting() {
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshot %s is being deleted", s.Source)
	}
	snapshot, content := s.Original.Snapshot, s.Original.Content
	if backup := s.Backup.Snapshot; !s.Verified && backup != nil && objects.IsDeleting(backup) && snapshot == nil && content == nil {
		// The objects are fetched once it is deleted.
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshot %s/%s is being deleted", s.Namespace, s.Name)
	}
	if !s.Verified {
		return Reobserve, ""
	}
	switch {
	case content != nil && retained(content):
		return SetDeletePolicyOfOriginal, ""
	case content != nil && snapshot != nil && !objects.IsDeleting(content) && slices.Contains(content.Finalizers, finalizerContent):
		return DeleteOriginalContent, "" // first, while its VolumeSnapshot still names it
	case snapshot != nil && !objects.IsDeleting(snapshot):
		return DeleteOriginal, ""
	case snapshot != nil:
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshot %s is being deleted", s.Source)
	case content != nil:
		return s.deleteContent(DeleteOriginalContent, MarkOriginalContentBeingDeleted, s.Original)
	case s.Backup.Snapshot != nil && !objects.IsDeleting(s.Backup.Snapshot):
		return DeleteBackup, ""
	case s.Backup.Snapshot != nil:
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshot %s/%s is being deleted", s.Namespace, s.Name)
	}
	return Finished, ""
}

// allDeleting reports whether the original and its content exist and are deleting with the handle, so that there is
// nothing to decide.
func (s State) allDeleting() bool {
	snapshot, content := s.Original.Snapshot, s.Original.Content
	return snapshot != nil && objects.IsDeleting(snapshot) && content != nil && objects.IsDeleting(content) && !retained(content)
}
