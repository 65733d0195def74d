// Package handover is the state machine of the snapshot hand-over and its cleanup: a volume snapshot moves from the
// namespace of its volume to the namespace of its data mover. It is pure: it never calls the API server, reads a
// clock or keeps state.
package handover

import (
	"fmt"
	"slices"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
	SetDeletePolicyOfBackup                     // set Delete, so that deleting the backup content deletes the handle
	MarkBackupContentBeingDeleted               // let the sidecar delete a backup content without a VolumeSnapshot
	DeleteBackup                                // delete the backup VolumeSnapshot
	DeleteBackupContent                         // delete the backup content
)

func (s Step) String() string {
	names := [...]string{
		"Finished", "Reobserve", "AwaitSnapshot", "Fail", "NameConflict", "CreateSnapshot", "CreateContent", "AdoptSnapshot",
		"AdoptContent", "RetainOriginal", "DeleteOriginal", "DeleteOriginalContent", "SetDeletePolicyOfOriginal",
		"MarkOriginalContentBeingDeleted", "SetHandleOfBackup", "SetDeletePolicyOfBackup", "MarkBackupContentBeingDeleted", "DeleteBackup",
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
		return AwaitSnapshot, notReady(original)
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

// notReady says that a snapshot is not ready, with the driver's error if there is one.
func notReady(snapshot *snapshotv1.VolumeSnapshot) string {
	description := fmt.Sprintf("VolumeSnapshot %s/%s is not ready", snapshot.Namespace, snapshot.Name)
	if status := snapshot.Status; status != nil && status.Error != nil && status.Error.Message != nil {
		description += ": " + *status.Error.Message
	}
	return description
}

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

// Names of the external snapshotter (its pkg/utils/util.go).
const (
	// annotationBeingDeleted permits the driver's sidecar to finish the deletion of a content. The
	// snapshot-controller sets it when the content's VolumeSnapshot is deleted. Without it a deleted content stays
	// for ever.
	annotationBeingDeleted = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	annotationBeingCreated = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
	// annotationModeChange permits volumes of another mode than the source has (KEP-3141). A block mover reads a device.
	annotationModeChange = "snapshot.storage.kubernetes.io/allow-volume-mode-change"
	// labelManagedBy names the node whose sidecar manages a content (distributed snapshotting).
	labelManagedBy = "snapshot.storage.kubernetes.io/managed-by"
	// finalizerContent keeps a content until the sidecar has finished its deletion.
	finalizerContent = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
)

// SnapshotPair is a VolumeSnapshot and its VolumeSnapshotContent; nil is one that does not exist.
type SnapshotPair struct {
	Snapshot *snapshotv1.VolumeSnapshot
	Content  *snapshotv1.VolumeSnapshotContent
}

// State is the observed state of one snapshot and its hand-over from the namespace of its volume to Velero's.
type State struct {
	Namespace, Name string    // of the backup VolumeSnapshot; its content has the same name
	UID             types.UID // of the custom resource of the transfer
	ExposingNode    string    // as in OwnerLabels
	Source          types.NamespacedName
	Original        SnapshotPair // created by Velero's server or its CSI plugin
	Backup          SnapshotPair // created by Lateen, or by Velero's agent

	// Verified means that nil objects were not found by the API server; otherwise only a cache lacks them.
	Verified bool
}

// BackupSnapshot builds the VolumeSnapshot in Velero's namespace that receives the original's handle. It has no
// owner: garbage collection would delete it together with the claim created from it.
func (s State) BackupSnapshot() *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: s.Name,
			Labels:      s.OwnerLabels(),
			Annotations: objects.Merged(s.Original.Snapshot.Annotations, s.Annotations()),
		},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source:                  snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &s.Name},
			VolumeSnapshotClassName: s.Original.Snapshot.Spec.VolumeSnapshotClassName,
		},
	}
}

// BackupContent builds the content that owns the handle from now on. It is bound to this backup VolumeSnapshot by
// UID, not to a recreated one of the same name.
func (s State) BackupContent() *snapshotv1.VolumeSnapshotContent {
	original := s.Original.Content
	labels := s.OwnerLabels()
	if node, distributed := original.Labels[labelManagedBy]; distributed {
		labels[labelManagedBy] = node
	}
	annotations := objects.Merged(original.Annotations, map[string]string{annotationModeChange: "true"})
	delete(annotations, annotationBeingDeleted)
	delete(annotations, annotationBeingCreated)
	return &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Labels: labels, Annotations: annotations},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				Kind: "VolumeSnapshot", APIVersion: snapshotv1.SchemeGroupVersion.String(),
				Namespace: s.Namespace, Name: s.Name, UID: s.Backup.Snapshot.UID,
			},
			Source:                  snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: original.Status.SnapshotHandle},
			DeletionPolicy:          snapshotv1.VolumeSnapshotContentDelete,
			Driver:                  original.Spec.Driver,
			VolumeSnapshotClassName: original.Spec.VolumeSnapshotClassName,
		},
	}
}

// Annotations returns the annotations from which a hand-over can be continued.
func (s State) Annotations() map[string]string {
	annotations := map[string]string{api.AnnotationSourceSnapshot: s.Source.String()}
	if name := s.SourceContent(); name != "" {
		annotations[api.AnnotationSourceContent] = name
	}
	if original := s.Original.Snapshot; original != nil && original.Status != nil && original.Status.RestoreSize != nil {
		annotations[api.AnnotationRestoreSize] = original.Status.RestoreSize.String()
	}
	return annotations
}

// LoadSource reads the source from the annotations of the backup VolumeSnapshot, if it is not set.
func (s *State) LoadSource() {
	if s.Source.Name == "" && s.Backup.Snapshot != nil {
		s.Source.Namespace, s.Source.Name, _ = strings.Cut(s.Backup.Snapshot.Annotations[api.AnnotationSourceSnapshot], "/")
	}
}

// OwnerLabels returns the labels of the backup objects.
func (s State) OwnerLabels() map[string]string { return objects.OwnerLabels(s.UID, s.ExposingNode) }

// MarkedBeingDeleted returns the annotation that permits the sidecar to finish the deletion of a content whose
// VolumeSnapshot is deleted.
func MarkedBeingDeleted() map[string]string { return map[string]string{annotationBeingDeleted: "yes"} }

// SourceContent returns the name of the original's content, or empty if no object names it.
func (s State) SourceContent() string {
	if s.Backup.Snapshot != nil {
		if name := s.Backup.Snapshot.Annotations[api.AnnotationSourceContent]; name != "" {
			return name
		}
	}
	original := s.Original.Snapshot
	switch {
	case original == nil:
		return ""
	case original.Status != nil && original.Status.BoundVolumeSnapshotContentName != nil:
		return *original.Status.BoundVolumeSnapshotContentName
	case original.Spec.Source.VolumeSnapshotContentName != nil:
		return *original.Spec.Source.VolumeSnapshotContentName
	default: // not bound yet; the snapshot-controller gives contents this name
		return "snapcontent-" + string(original.UID)
	}
}

// RestoreSize returns the required size of a volume created from the snapshot; 0 if it is not known.
func (s State) RestoreSize() resource.Quantity {
	for _, snapshot := range []*snapshotv1.VolumeSnapshot{s.Backup.Snapshot, s.Original.Snapshot} {
		if snapshot == nil {
			continue
		}
		if size, err := resource.ParseQuantity(snapshot.Annotations[api.AnnotationRestoreSize]); err == nil {
			return size
		}
		if snapshot.Status != nil && snapshot.Status.RestoreSize != nil {
			return *snapshot.Status.RestoreSize
		}
	}
	return resource.Quantity{}
}

// Annotations of vSphere's CSI driver on VolumeSnapshots (Velero's pkg/util/third_party.go).
const (
	annotationVSphereSnapshot = "csi.vsphere.volume/snapshot" // handle of the volume, "+", handle of the snapshot
	annotationVSphereChange   = "csi.vsphere.volume/change-id"
)

// ChangedBlocks identifies the handed-over snapshot of a volume with that handle.
func (s State) ChangedBlocks(volume string) *objects.ChangedBlocks {
	found := &objects.ChangedBlocks{Volume: volume, Snapshot: s.Name, Change: *s.Backup.Content.Spec.Source.SnapshotHandle}
	change, snapshot := s.Backup.Snapshot.Annotations[annotationVSphereChange], s.Backup.Snapshot.Annotations[annotationVSphereSnapshot]
	if change != "" || snapshot != "" {
		found.Change, found.Volume = change, ""
		if volume, _, both := strings.Cut(snapshot, "+"); both {
			found.Volume = volume
		}
	}
	return found
}

// isRecreatedSource reports whether the original VolumeSnapshot is a recreated one of the same name, not the one of
// this hand-over.
func (s State) isRecreatedSource() bool {
	if s.Original.Snapshot == nil || s.Backup.Snapshot == nil {
		return false
	}
	was := s.Backup.Snapshot.Annotations[api.AnnotationSourceContent]
	bare := State{Original: s.Original}
	return was != "" && was != bare.SourceContent()
}

// oursSnapshot reports whether the backup VolumeSnapshot belongs to the same custom resource. Lateen labels it.
// Velero's own agent sets no label, but gives both backup objects the same name and binds them to each other. Names
// of custom resources are generated, so a leftover of another one has a different name.
func (s State) oursSnapshot() bool {
	created := s.Backup.Snapshot
	if owner, labelled := created.Labels[api.LabelOwnerUID]; labelled {
		return owner == string(s.UID)
	}
	content := created.Spec.Source.VolumeSnapshotContentName
	return content != nil && *content == s.Name
}

func (s State) oursContent() bool {
	created := s.Backup.Content
	if owner, labelled := created.Labels[api.LabelOwnerUID]; labelled {
		return owner == string(s.UID)
	}
	ref := created.Spec.VolumeSnapshotRef
	return ref.Namespace == s.Namespace && ref.Name == s.Name && created.Spec.Source.SnapshotHandle != nil
}

func handle(content *snapshotv1.VolumeSnapshotContent) string {
	if content.Status == nil || content.Status.SnapshotHandle == nil {
		return ""
	}
	return *content.Status.SnapshotHandle
}

func retained(content *snapshotv1.VolumeSnapshotContent) bool {
	return content.Spec.DeletionPolicy == snapshotv1.VolumeSnapshotContentRetain
}

func markedBeingDeleted(content *snapshotv1.VolumeSnapshotContent) bool {
	return metav1.HasAnnotation(content.ObjectMeta, annotationBeingDeleted)
}
