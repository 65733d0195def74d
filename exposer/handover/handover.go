// Package handover is the state machine of the snapshot hand-over and its cleanup: a volume snapshot moves from the
// namespace of its volume to the namespace of its data mover. It is pure: it never calls the API server, reads a
// clock or keeps state.
package handover

import (
	"fmt"
	"slices"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// Step is the next step for a snapshot. Each step is idempotent, and the agent may crash after each.
type Step int

// The steps of the hand-over and of its cleanup.
const (
	Finished                        Step = iota // nothing is left to do
	Reobserve                                   // GET the objects that the caches do not have
	AwaitSnapshot                               // wait for another controller; the message says what for
	Fail                                        // the hand-over can never succeed; the message says why
	NameConflict                                // an object of another owner has the name; the message names it
	CreateSnapshot                              // create the backup VolumeSnapshot
	CreateContent                               // create its content
	AdoptSnapshot                               // label a backup VolumeSnapshot of Velero's agent as Lateen's
	AdoptContent                                // label its content as Lateen's
	RetainOriginal                              // set Retain, so that deleting the original content keeps the handle
	DeleteOriginal                              // delete the original VolumeSnapshot
	DeleteOriginalContent                       // delete the original content
	SetDeletePolicyOfOriginal                   // set Delete, so that deleting the original content deletes the handle
	MarkOriginalContentBeingDeleted             // let the sidecar delete an original content without a VolumeSnapshot
	SetHandleOfBackup                           // write the handle into the status of the backup content, for the sidecar
	ReleaseBackupContent                        // remove Lateen's labels from a backup content that is kept
	MarkBackupContentBeingDeleted               // let the sidecar delete a backup content without a VolumeSnapshot
	DeleteBackup                                // delete the backup VolumeSnapshot
	DeleteBackupContent                         // delete the backup content
)

func (s Step) String() string {
	names := [...]string{
		"Finished", "Reobserve", "AwaitSnapshot", "Fail", "NameConflict", "CreateSnapshot", "CreateContent", "AdoptSnapshot",
		"AdoptContent", "RetainOriginal", "DeleteOriginal", "DeleteOriginalContent", "SetDeletePolicyOfOriginal",
		"MarkOriginalContentBeingDeleted", "SetHandleOfBackup", "ReleaseBackupContent", "MarkBackupContentBeingDeleted", "DeleteBackup",
		"DeleteBackupContent",
	}
	return names[s]
}

// Next returns the next step of the hand-over, with a message if it waits or fails. After each step a content with
// the handle exists that is the original, retained, or Lateen's. So the order is: the handle gets a second owner;
// the original content gets policy Retain; the originals are deleted.
func (s State) Next() (Step, string) {
	if description := s.nameConflict(); description != "" {
		return NameConflict, description
	}
	if s.isRecreatedSource() {
		s.Original.Snapshot = nil
	}
	switch {
	case s.Backup.Content != nil:
		return s.deleteOriginals()
	case s.Backup.Snapshot != nil:
		return s.createBackupPair(CreateContent)
	default:
		return s.begin()
	}
}

// fail returns Fail for a state that can never succeed. If the caches lack an object they may lag behind, so it
// returns Reobserve first.
func (s State) fail(format string, description ...any) (Step, string) {
	if !s.Verified && (s.Original.Snapshot == nil || s.Original.Content == nil || s.Backup.Snapshot == nil || s.Backup.Content == nil) {
		return Reobserve, ""
	}
	return Fail, fmt.Sprintf(format, description...)
}

func (s State) begin() (Step, string) {
	original := s.Original.Snapshot
	switch {
	case original == nil:
		return s.fail("VolumeSnapshot %s does not exist", s.Source)
	case objects.IsDeleting(original):
		return s.fail("VolumeSnapshot %s is being deleted", s.Source)
	case !ready(original):
		return AwaitSnapshot, describe(original, "is not ready")
	}
	return s.createBackupPair(CreateSnapshot)
}

// createBackupPair returns the step for a handle with one owner: first, which starts the creation of a second
// owner, or what blocks it.
func (s State) createBackupPair(first Step) (Step, string) {
	content, name := s.Original.Content, s.SourceContent()
	switch {
	case s.Backup.Snapshot != nil && objects.IsDeleting(s.Backup.Snapshot):
		return s.fail("VolumeSnapshot %s/%s is being deleted", s.Namespace, s.Name)
	case content == nil:
		return s.fail("VolumeSnapshotContent %s of VolumeSnapshot %s does not exist", name, s.Source)
	case (objects.IsDeleting(content) || markedBeingDeleted(content)) && !retained(content):
		return s.fail("VolumeSnapshotContent %s of VolumeSnapshot %s is being deleted", name, s.Source)
	case content.Spec.VolumeSnapshotRef.Namespace != s.Source.Namespace || content.Spec.VolumeSnapshotRef.Name != s.Source.Name:
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshotContent %s is not bound to VolumeSnapshot %s", name, s.Source)
	case handle(content) == "":
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshotContent %s has no snapshot handle yet", name)
	case s.Backup.Snapshot != nil && s.Backup.Snapshot.Labels[api.LabelOwnerUID] == "":
		return AdoptSnapshot, ""
	}
	return first, ""
}

// deleteOriginals returns the steps that delete the originals of a handle with a second owner.
func (s State) deleteOriginals() (Step, string) {
	backup, content := s.Backup.Snapshot, s.Backup.Content
	switch {
	case backup == nil:
		return s.fail("VolumeSnapshot %s/%s was deleted after the hand-over of the snapshot", s.Namespace, s.Name)
	case objects.IsDeleting(backup):
		return s.fail("VolumeSnapshot %s/%s is being deleted", s.Namespace, s.Name)
	case objects.IsDeleting(content):
		return s.fail("VolumeSnapshotContent %s is being deleted", s.Name)
	case content.Spec.VolumeSnapshotRef.UID != "" && content.Spec.VolumeSnapshotRef.UID != backup.UID:
		return s.fail("VolumeSnapshotContent %s is bound to an earlier VolumeSnapshot of the same name", s.Name)
	case backup.Labels[api.LabelOwnerUID] == "":
		return AdoptSnapshot, ""
	case content.Labels[api.LabelOwnerUID] == "":
		return AdoptContent, ""
	}
	if step := s.detachOriginal(); step != Finished {
		return step, ""
	}
	if original := s.Original.Content; original != nil && !objects.IsDeleting(original) {
		return DeleteOriginalContent, ""
	}
	return Finished, ""
}

// detachOriginal returns the next step before the original content may be deleted. Its deletionPolicy must be
// Retain before anything is deleted. A content that the cache lacks must be fetched before its VolumeSnapshot is
// deleted, because that also deletes the content.
func (s State) detachOriginal() Step {
	snapshot, content := s.Original.Snapshot, s.Original.Content
	switch {
	case content != nil && !retained(content):
		return RetainOriginal
	case snapshot == nil || objects.IsDeleting(snapshot):
		return Finished
	case content == nil && !s.Verified:
		return Reobserve
	}
	return DeleteOriginal
}

func (s State) nameConflict() string {
	switch {
	case s.Backup.Snapshot != nil && !s.oursSnapshot():
		return fmt.Sprintf("VolumeSnapshot %s/%s exists but has another owner; delete it to unblock the transfer", s.Namespace, s.Name)
	case s.Backup.Content != nil && !s.oursContent():
		return fmt.Sprintf("VolumeSnapshotContent %s exists but has another owner; delete it to unblock the transfer", s.Name)
	}
	return ""
}

func ready(snapshot *snapshotv1.VolumeSnapshot) bool {
	status := snapshot.Status
	return status != nil && status.ReadyToUse != nil && *status.ReadyToUse && status.BoundVolumeSnapshotContentName != nil
}

// describe returns the state of a snapshot, with the error of the driver or of the snapshot-controller if there is one.
func describe(snapshot *snapshotv1.VolumeSnapshot, state string) string {
	description := fmt.Sprintf("VolumeSnapshot %s/%s %s", snapshot.Namespace, snapshot.Name, state)
	if status := snapshot.Status; status != nil && status.Error != nil && status.Error.Message != nil {
		description += ": " + *status.Error.Message
	}
	return description
}

// NextCleanup returns the next step of the cleanup. In the end neither pair exists, and the driver has deleted the
// handle exactly once; but a backup content with policy Retain, and its handle, are kept. The cleanup may start from
// any point of the hand-over. If the backup content exists, its deletion also deletes the handle; otherwise the
// deletion of the original content does. An object with annotations about another one is deleted after that one. So
// the backup VolumeSnapshot is deleted after the originals. An original VolumeSnapshot is deleted after its content is
// deleting.
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
		return AwaitSnapshot, describe(s.Original.Snapshot, "is being deleted")
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
	case objects.IsDeleting(content), retained(content):
	case handle(content) == "":
		return SetHandleOfBackup, ""
	case !slices.Contains(content.Finalizers, finalizerContent):
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshotContent %s has no finalizer of the snapshot-controller yet", s.Name)
	}
	if s.Backup.Snapshot == nil && !markedBeingDeleted(content) && !s.Verified {
		return Reobserve, "" // a backup VolumeSnapshot may exist and name an original that owns the handle too
	}
	if s.Backup.Snapshot != nil && !objects.IsDeleting(s.Backup.Snapshot) {
		return DeleteBackup, ""
	}
	if retained(content) {
		return s.keepBackup()
	}
	return s.deleteContent(DeleteBackupContent, MarkBackupContentBeingDeleted, s.Backup)
}

// keepBackup leaves a content with policy Retain to the administrator, without labels that name an owner.
func (s State) keepBackup() (Step, string) {
	switch {
	case s.Backup.Snapshot != nil:
		return AwaitSnapshot, describe(s.Backup.Snapshot, "is being deleted")
	case s.Backup.Content.Labels[api.LabelOwnerUID] != "":
		return ReleaseBackupContent, ""
	}
	return Finished, ""
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
		return AwaitSnapshot, describe(s.Original.Snapshot, "is being deleted")
	}
	snapshot, content := s.Original.Snapshot, s.Original.Content
	if backup := s.Backup.Snapshot; !s.Verified && backup != nil && objects.IsDeleting(backup) && snapshot == nil && content == nil {
		// The objects are fetched once it is deleted.
		return AwaitSnapshot, describe(s.Backup.Snapshot, "is being deleted")
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
		return AwaitSnapshot, describe(s.Original.Snapshot, "is being deleted")
	case content != nil:
		return s.deleteContent(DeleteOriginalContent, MarkOriginalContentBeingDeleted, s.Original)
	case s.Backup.Snapshot != nil && !objects.IsDeleting(s.Backup.Snapshot):
		return DeleteBackup, ""
	case s.Backup.Snapshot != nil:
		return AwaitSnapshot, describe(s.Backup.Snapshot, "is being deleted")
	}
	return Finished, ""
}

// allDeleting reports whether the original and its content exist and are deleting with the handle, so that there is
// nothing to decide.
func (s State) allDeleting() bool {
	snapshot, content := s.Original.Snapshot, s.Original.Content
	return snapshot != nil && objects.IsDeleting(snapshot) && content != nil && objects.IsDeleting(content) && !retained(content)
}
