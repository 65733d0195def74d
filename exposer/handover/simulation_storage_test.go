package handover

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// creator is the creator of a backup object.
type creator uint8

const (
	lateen creator = iota
	velero
	anotherTransfer
)

// simulatedObject is the relevant state of a VolumeSnapshot or of its content. The zero value is one that does not exist.
type simulatedObject struct {
	exists, deleting             bool
	protected                    bool    // has the finalizers of the snapshot-controller
	ready                        bool    // of an original VolumeSnapshot
	creator                      creator // of a backup
	retained, markedBeingDeleted bool    // of a content
	handle                       bool    // of a content: in the status, where the sidecar reads the handle to delete
}

// simulatedPairs are the four objects of a hand-over, in reality or in a view.
type simulatedPairs struct {
	original, content     simulatedObject
	backup, backupContent simulatedObject
}

// simulatedStorage is the state of the API server, and how often the driver deleted the handle.
type simulatedStorage struct {
	simulatedPairs
	deleted uint8
}

// state returns the state that an agent observes.
func (s simulatedPairs) state(verified bool) State {
	h := State{
		Namespace: "velero", Name: "du", UID: "du-uid", ExposingNode: "n1", Verified: verified,
		Source: types.NamespacedName{Namespace: "apps", Name: "snap"},
	}
	h.Original.Snapshot, h.Backup.Snapshot, h.Backup.Content = s.original.originalSnapshot(), s.backup.backupSnapshot(h), s.backupContent.backupContent(h)
	if h.SourceContent() == "content" { // otherwise no object names the content
		h.Original.Content = s.content.content("content", types.NamespacedName{Namespace: "apps", Name: "snap"})
	}
	return h
}

func (s simulatedObject) originalSnapshot() *snapshotv1.VolumeSnapshot {
	if !s.exists {
		return nil
	}
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: simulatedMeta("apps", "snap", s.deleting),
		Status:     &snapshotv1.VolumeSnapshotStatus{ReadyToUse: &s.ready, BoundVolumeSnapshotContentName: new("content")},
	}
}

func (s simulatedObject) backupSnapshot(h State) *snapshotv1.VolumeSnapshot {
	if !s.exists {
		return nil
	}
	created := &snapshotv1.VolumeSnapshot{ObjectMeta: simulatedMeta(h.Namespace, h.Name, s.deleting)}
	created.Spec.Source.VolumeSnapshotContentName, created.Labels = &h.Name, s.labels(h)
	if s.creator == lateen {
		created.Annotations = map[string]string{api.AnnotationSourceContent: "content", api.AnnotationSourceSnapshot: "apps/snap"}
	}
	return created
}

// labels returns the labels of a backup object.
func (s simulatedObject) labels(h State) map[string]string {
	return map[creator]map[string]string{lateen: h.OwnerLabels(), anotherTransfer: objects.OwnerLabels("another", "n1")}[s.creator]
}

func (s simulatedObject) backupContent(h State) *snapshotv1.VolumeSnapshotContent {
	created := s.content(h.Name, types.NamespacedName{Namespace: h.Namespace, Name: h.Name})
	if created == nil {
		return nil
	}
	created.Spec.Source.SnapshotHandle, created.Labels = new("handle"), s.labels(h)
	return created
}

func (s simulatedObject) content(name string, of types.NamespacedName) *snapshotv1.VolumeSnapshotContent {
	if !s.exists {
		return nil
	}
	object := &snapshotv1.VolumeSnapshotContent{ObjectMeta: simulatedMeta("", name, s.deleting)}
	object.Spec.VolumeSnapshotRef = corev1.ObjectReference{Namespace: of.Namespace, Name: of.Name, UID: types.UID(of.Name + "-uid")}
	object.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentDelete
	if s.retained {
		object.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
	}
	if s.markedBeingDeleted {
		object.Annotations = MarkedBeingDeleted()
	}
	if s.protected {
		object.Finalizers = []string{finalizerContent}
	}
	if s.handle {
		object.Status = &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("handle")}
	}
	return object
}

func simulatedMeta(namespace, name string, deleting bool) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid")}
	if deleting {
		meta.DeletionTimestamp = &metav1.Time{}
	}
	return meta
}

// controllers returns the possible next actions of the snapshot-controller and the driver's sidecar, each on its
// own.
func (s simulatedStorage) controllers() []simulatedStorage {
	var next []simulatedStorage
	may := func(can bool, do func(*simulatedStorage)) {
		if can {
			then := s
			do(&then)
			next = append(next, then)
		}
	}
	pair := func(at func(*simulatedStorage) (*simulatedObject, *simulatedObject)) {
		snapshot, content := at(&s)
		deleting := snapshot.exists && snapshot.deleting
		may(snapshot.exists && !deleting && !snapshot.protected && content.exists, func(s *simulatedStorage) { v, _ := at(s); v.protected = true })
		may(content.exists && !content.deleting && !content.protected, func(s *simulatedStorage) { _, c := at(s); c.protected = true })
		may(deleting && content.exists && !content.markedBeingDeleted, func(s *simulatedStorage) { _, c := at(s); c.markedBeingDeleted = true })
		may(deleting && content.exists && content.markedBeingDeleted && !content.retained && !content.deleting, func(s *simulatedStorage) { _, c := at(s); c.delete() })
		may(deleting && (!content.exists || content.markedBeingDeleted && content.retained), func(s *simulatedStorage) { v, _ := at(s); *v = simulatedObject{} })
		may(content.exists && !content.deleting && !content.handle && s.deleted == 0, func(s *simulatedStorage) { _, c := at(s); c.handle = true })
		may(content.exists && content.deleting && content.markedBeingDeleted, func(s *simulatedStorage) {
			_, c := at(s)
			if c.handle && !c.retained {
				s.deleted++
			}
			*c = simulatedObject{}
		})
	}
	pair(func(s *simulatedStorage) (*simulatedObject, *simulatedObject) { return &s.original, &s.content })
	pair(func(s *simulatedStorage) (*simulatedObject, *simulatedObject) { return &s.backup, &s.backupContent })
	return next
}

// settled returns the storage after all actions of the controllers.
func (s simulatedStorage) settled() simulatedStorage {
	for next := s.controllers(); len(next) > 0; next = s.controllers() {
		s = next[0]
	}
	return s
}

// keepsHandle reports whether the handle stays if no agent acts from now on.
func (s simulatedStorage) keepsHandle() bool {
	s = s.settled()
	return s.deleted == 0 && (s.content.exists || s.backupContent.exists && s.backupContent.creator != anotherTransfer)
}

func (s *simulatedObject) delete() {
	s.deleting = true
	if !s.protected {
		*s = simulatedObject{}
	}
}
