package handover

import (
	"maps"
	"strings"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/objects"
)

// What a backup VolumeSnapshot remembers from its creation on, so that whoever finds it can go on with the
// hand-over or undo it without knowing anything else.
const (
	AnnotationSourceContent  = "lateen.dev/source-content"  // name of the VolumeSnapshotContent that the snapshot came with
	AnnotationSourceSnapshot = "lateen.dev/source-snapshot" // namespace/name of the VolumeSnapshot that it came with
	AnnotationRestoreSize    = "lateen.dev/restore-size"    // what the original says that a volume made of it needs; absent if nothing
)

// Names of the external snapshotter (its pkg/utils/util.go).
const (
	// annotationBeingDeleted lets the driver's sidecar finish the deletion of a content. The
	// snapshot-controller sets it when the content's VolumeSnapshot is deleted; without it a content that is
	// deleted stays for ever.
	annotationBeingDeleted = "snapshot.storage.kubernetes.io/volumesnapshot-being-deleted"
	annotationBeingCreated = "snapshot.storage.kubernetes.io/volumesnapshot-being-created"
	// labelManagedBy names the node whose sidecar looks after a content (distributed snapshotting).
	labelManagedBy = "snapshot.storage.kubernetes.io/managed-by"
	// finalizerContent keeps a content until the sidecar is done with it.
	finalizerContent = "snapshot.storage.kubernetes.io/volumesnapshotcontent-bound-protection"
)

// SnapshotPair is a VolumeSnapshot and its VolumeSnapshotContent; nil is one that is not there.
type SnapshotPair struct {
	Snapshot *snapshotv1.VolumeSnapshot
	Content  *snapshotv1.VolumeSnapshotContent
}

// State is what is there of one snapshot that is, or was, or is to be handed over from the namespace of
// its volume to Velero's.
type State struct {
	Namespace, Name string    // of the backup VolumeSnapshot; its content has the same name
	UID             types.UID // of the custom resource that it is for
	ExposingNode    string    // as in Ours
	Source          types.NamespacedName
	Original        SnapshotPair // as Velero's server, or its CSI plugin, made it
	Backup          SnapshotPair // ours

	// Verified means that what is nil here was not found by the API server; without it a cache does not have it.
	Verified bool
}

// BackupSnapshot builds the VolumeSnapshot in Velero's namespace that the original's handle is handed to. It
// has no owner: garbage collection would delete it together with the claim that is made of it.
func (h State) BackupSnapshot() *snapshotv1.VolumeSnapshot {
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: h.Namespace, Name: h.Name,
			Labels:      h.OwnerLabels(),
			Annotations: objects.Merged(h.Original.Snapshot.Annotations, h.Annotations()),
		},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source:                  snapshotv1.VolumeSnapshotSource{VolumeSnapshotContentName: &h.Name},
			VolumeSnapshotClassName: h.Original.Snapshot.Spec.VolumeSnapshotClassName,
		},
	}
}

// BackupContent builds the content that holds the handle from now on. It is bound to the backup
// VolumeSnapshot and to no later one of that name.
func (h State) BackupContent() *snapshotv1.VolumeSnapshotContent {
	original := h.Original.Content
	labels := h.OwnerLabels()
	if node, distributed := original.Labels[labelManagedBy]; distributed {
		labels[labelManagedBy] = node
	}
	annotations := maps.Clone(original.Annotations)
	delete(annotations, annotationBeingDeleted)
	delete(annotations, annotationBeingCreated)
	return &snapshotv1.VolumeSnapshotContent{
		ObjectMeta: metav1.ObjectMeta{Name: h.Name, Labels: labels, Annotations: annotations},
		Spec: snapshotv1.VolumeSnapshotContentSpec{
			VolumeSnapshotRef: corev1.ObjectReference{
				Kind: "VolumeSnapshot", APIVersion: snapshotv1.SchemeGroupVersion.String(),
				Namespace: h.Namespace, Name: h.Name, UID: h.Backup.Snapshot.UID,
			},
			Source:                  snapshotv1.VolumeSnapshotContentSource{SnapshotHandle: original.Status.SnapshotHandle},
			DeletionPolicy:          snapshotv1.VolumeSnapshotContentDelete,
			Driver:                  original.Spec.Driver,
			VolumeSnapshotClassName: original.Spec.VolumeSnapshotClassName,
		},
	}
}

// Annotations are the annotations by which a hand-over is found again.
func (h State) Annotations() map[string]string {
	memory := map[string]string{AnnotationSourceSnapshot: h.Source.String()}
	if name := h.SourceContent(); name != "" {
		memory[AnnotationSourceContent] = name
	}
	if original := h.Original.Snapshot; original != nil && original.Status != nil && original.Status.RestoreSize != nil {
		memory[AnnotationRestoreSize] = original.Status.RestoreSize.String()
	}
	return memory
}

// LoadSource finds the source, if nobody named it, where the hand-over left it.
func (h *State) LoadSource() {
	if h.Source.Name == "" && h.Backup.Snapshot != nil {
		h.Source.Namespace, h.Source.Name, _ = strings.Cut(h.Backup.Snapshot.Annotations[AnnotationSourceSnapshot], "/")
	}
}

// OwnerLabels are the labels of the backup objects.
func (h State) OwnerLabels() map[string]string { return objects.OwnerLabels(h.UID, h.ExposingNode) }

// MarkedBeingDeleted are the annotations that let the sidecar finish the deletion of a content whose VolumeSnapshot is gone.
func MarkedBeingDeleted() map[string]string { return map[string]string{annotationBeingDeleted: "yes"} }

// SourceContent is the name of the original's content, or empty if nothing tells it any more.
func (h State) SourceContent() string {
	if h.Backup.Snapshot != nil {
		if name := h.Backup.Snapshot.Annotations[AnnotationSourceContent]; name != "" {
			return name
		}
	}
	original := h.Original.Snapshot
	switch {
	case original == nil:
		return ""
	case original.Status != nil && original.Status.BoundVolumeSnapshotContentName != nil:
		return *original.Status.BoundVolumeSnapshotContentName
	case original.Spec.Source.VolumeSnapshotContentName != nil:
		return *original.Spec.Source.VolumeSnapshotContentName
	default: // not bound yet; the snapshot-controller names what it makes so
		return "snapcontent-" + string(original.UID)
	}
}

// RestoreSize is how much a volume needs that is made of the snapshot; 0 if nobody said.
func (h State) RestoreSize() resource.Quantity {
	for _, snapshot := range []*snapshotv1.VolumeSnapshot{h.Backup.Snapshot, h.Original.Snapshot} {
		if snapshot == nil {
			continue
		}
		if size, err := resource.ParseQuantity(snapshot.Annotations[AnnotationRestoreSize]); err == nil {
			return size
		}
		if snapshot.Status != nil && snapshot.Status.RestoreSize != nil {
			return *snapshot.Status.RestoreSize
		}
	}
	return resource.Quantity{}
}

// isRecreatedSource tells whether an original VolumeSnapshot is not the one that was handed over but a later one of
// its name.
func (h State) isRecreatedSource() bool {
	if h.Original.Snapshot == nil || h.Backup.Snapshot == nil {
		return false
	}
	was := h.Backup.Snapshot.Annotations[AnnotationSourceContent]
	bare := State{Original: h.Original}
	return was != "" && was != bare.SourceContent()
}

// ours tells whether a backup object was made for the same custom resource: by Lateen, which labels it, or
// by Velero's own agent, which labels nothing but makes both of one name and bound to each other. Names of
// custom resources are generated, so a leftover of another one does not have this name.
func (h State) oursSnapshot() bool {
	created := h.Backup.Snapshot
	if owner, labelled := created.Labels[objects.LabelOwnerUID]; labelled {
		return owner == string(h.UID)
	}
	content := created.Spec.Source.VolumeSnapshotContentName
	return content != nil && *content == h.Name
}

func (h State) oursContent() bool {
	created := h.Backup.Content
	if owner, labelled := created.Labels[objects.LabelOwnerUID]; labelled {
		return owner == string(h.UID)
	}
	ref := created.Spec.VolumeSnapshotRef
	return ref.Namespace == h.Namespace && ref.Name == h.Name && created.Spec.Source.SnapshotHandle != nil
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
