package handover

import (
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

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

	// KeepsRetained means that the storage keeps the snapshot if the deletionPolicy of its class is Retain: a block mover may need it
	// for the changed blocks of the next backup (velero#10307). Other movers never read it again.
	KeepsRetained bool

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
	policy := snapshotv1.VolumeSnapshotContentDelete
	if s.KeepsRetained {
		policy = original.Spec.DeletionPolicy
	}
	return &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: s.Name, Labels: labels, Annotations: annotations},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				Kind: "VolumeSnapshot", APIVersion: snapshotv1.SchemeGroupVersion.String(),
				Namespace: s.Namespace, Name: s.Name, UID: s.Backup.Snapshot.UID,
			},
			Source:                  snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: original.Status.SnapshotHandle},
			DeletionPolicy:          policy,
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

// NoOwnerLabels returns the labels of a merge patch that removes the owner labels.
func (s State) NoOwnerLabels() map[string]any {
	removed := map[string]any{}
	for label := range s.OwnerLabels() {
		removed[label] = nil
	}
	return removed
}

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
