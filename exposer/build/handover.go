package build

import (
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
)

// Rung is the next thing to do for a snapshot. Each is safe to do twice, and one after which the agent may
// die.
type Rung int

// The rungs of the hand-over and of its clean-up.
const (
	Finished              Rung = iota // nothing is left to do
	LookAgain                         // ask the API server for what the caches do not have
	AwaitSnapshot                     // something else has to happen first; the words say what
	GiveUp                            // it can never be done; the words say why
	InTheWay                          // something of somebody else has the name; the words say what
	MakeSnapshot                      // create the backup VolumeSnapshot
	MakeContent                       // create its content
	AdoptSnapshot                     // make a backup VolumeSnapshot of Velero's agent ours
	AdoptContent                      // make its content ours
	RetainOriginal                    // let the original content be deleted without the handle
	DeleteOriginal                    // delete the original VolumeSnapshot; of a hand-over, rehearse before
	DeleteOriginalContent             // delete the original content
	SpendOriginal                     // let the original content take the handle with it
	FreeOriginalContent               // let the sidecar delete an original content that has lost its VolumeSnapshot
	SpendBackup                       // let the backup content take the handle with it
	FreeBackupContent                 // let the sidecar delete a backup content that has lost its VolumeSnapshot
	DeleteBackup                      // delete the backup VolumeSnapshot
	DeleteBackupContent               // delete the backup content
)

func (r Rung) String() string {
	names := [...]string{
		"Finished", "LookAgain", "AwaitSnapshot", "GiveUp", "InTheWay", "MakeSnapshot", "MakeContent", "AdoptSnapshot", "AdoptContent",
		"RetainOriginal", "DeleteOriginal", "DeleteOriginalContent", "SpendOriginal", "FreeOriginalContent", "SpendBackup",
		"FreeBackupContent", "DeleteBackup", "DeleteBackupContent",
	}
	if r < 0 || int(r) >= len(names) {
		return fmt.Sprintf("Rung(%d)", int(r))
	}
	return names[r]
}

// Next is the next rung of the hand-over, with words where there is something to say. The order is such that
// after each rung some content with the handle exists that is the original, or retained, or ours: first the
// handle gets a second owner, then the first one is told to leave it alone, then the first one goes.
func (h Handover) Next() (Rung, string) {
	if words := h.inTheWay(); words != "" {
		return InTheWay, words
	}
	if h.stranger() {
		h.Original.Snapshot = nil
	}
	switch {
	case h.Backup.Content != nil:
		return h.dropOriginals()
	case h.Backup.Snapshot != nil:
		return h.secondOwner(MakeContent)
	default:
		return h.begin()
	}
}

// giveUp is for what can never be done as far as the caches know; they may lag behind.
func (h Handover) giveUp(format string, words ...any) (Rung, string) {
	if !h.Known && (h.Original.Snapshot == nil || h.Original.Content == nil || h.Backup.Snapshot == nil || h.Backup.Content == nil) {
		return LookAgain, ""
	}
	return GiveUp, fmt.Sprintf(format, words...)
}

func (h Handover) begin() (Rung, string) {
	original := h.Original.Snapshot
	switch {
	case original == nil:
		return h.giveUp("VolumeSnapshot %s does not exist", h.Source)
	case ending(original):
		return h.giveUp("VolumeSnapshot %s is being deleted", h.Source)
	case !ready(original):
		return AwaitSnapshot, notReady(original)
	}
	return h.secondOwner(MakeSnapshot)
}

// secondOwner says what to do for a handle that has only one owner yet: the first of what makes another, or
// why not.
func (h Handover) secondOwner(first Rung) (Rung, string) {
	content, name := h.Original.Content, h.SourceContent()
	switch {
	case h.Backup.Snapshot != nil && ending(h.Backup.Snapshot):
		return h.giveUp("VolumeSnapshot %s/%s is being deleted", h.Namespace, h.Name)
	case content == nil:
		return h.giveUp("VolumeSnapshotContent %s of VolumeSnapshot %s does not exist", name, h.Source)
	case (ending(content) || freed(content)) && !retained(content):
		return h.giveUp("VolumeSnapshotContent %s of VolumeSnapshot %s is being deleted", name, h.Source)
	case content.Spec.VolumeSnapshotRef.Namespace != h.Source.Namespace || content.Spec.VolumeSnapshotRef.Name != h.Source.Name:
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshotContent %s is not bound to VolumeSnapshot %s", name, h.Source)
	case handle(content) == "":
		return AwaitSnapshot, fmt.Sprintf("VolumeSnapshotContent %s has no snapshot handle yet", name)
	case h.Backup.Snapshot != nil && h.Backup.Snapshot.Labels[LabelOwnerUID] == "":
		return AdoptSnapshot, ""
	}
	return first, ""
}

// dropOriginals retires the originals of a handle that has its second owner.
func (h Handover) dropOriginals() (Rung, string) {
	backup, content := h.Backup.Snapshot, h.Backup.Content
	switch {
	case backup == nil:
		return h.giveUp("VolumeSnapshot %s/%s is gone although the snapshot was handed to it", h.Namespace, h.Name)
	case ending(backup):
		return h.giveUp("VolumeSnapshot %s/%s is being deleted", h.Namespace, h.Name)
	case ending(content):
		return h.giveUp("VolumeSnapshotContent %s is being deleted", h.Name)
	case content.Spec.VolumeSnapshotRef.UID != "" && content.Spec.VolumeSnapshotRef.UID != backup.UID:
		return h.giveUp("VolumeSnapshotContent %s is bound to an earlier VolumeSnapshot of the same name", h.Name)
	case backup.Labels[LabelOwnerUID] == "":
		return AdoptSnapshot, ""
	case content.Labels[LabelOwnerUID] == "":
		return AdoptContent, ""
	}
	if rung := h.retire(); rung != Finished {
		return rung, ""
	}
	if original := h.Original.Content; original != nil && !ending(original) {
		return DeleteOriginalContent, ""
	}
	return Finished, ""
}

// retire is what has to be done before the original content goes: it must leave the handle alone before
// anything is deleted, and it must be known to before its VolumeSnapshot is, which takes it along.
func (h Handover) retire() Rung {
	snapshot, content := h.Original.Snapshot, h.Original.Content
	switch {
	case content != nil && !retained(content):
		return RetainOriginal
	case snapshot == nil || ending(snapshot):
		return Finished
	case content == nil && !h.Known:
		return LookAgain
	}
	return DeleteOriginal
}

func (h Handover) inTheWay() string {
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
	words := fmt.Sprintf("VolumeSnapshot %s/%s is not ready", snapshot.Namespace, snapshot.Name)
	if status := snapshot.Status; status != nil && status.Error != nil && status.Error.Message != nil {
		words += ": " + *status.Error.Message
	}
	return words
}
