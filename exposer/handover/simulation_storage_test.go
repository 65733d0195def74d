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

// simulatedSnapshot is the relevant state of a VolumeSnapshot. The zero value is one that does not exist.
type simulatedSnapshot struct {
	exists, deleting bool
	protected        bool    // has the finalizers of the snapshot-controller
	ready            bool    // of an original
	creator          creator // of a backup
}

// simulatedContent is the relevant state of a VolumeSnapshotContent.
type simulatedContent struct {
	exists, deleting, protected  bool
	retained, markedBeingDeleted bool
	handle                       bool // is in the status, where the sidecar reads the handle to delete
	creator                      creator
}

// simulatedPairs are the four objects of a hand-over, in reality or in a view.
type simulatedPairs struct {
	original      simulatedSnapshot
	content       simulatedContent // of the original
	backup        simulatedSnapshot
	backupContent simulatedContent // of the backup
}

// simulatedStorage is the state of the API server, and how often the driver deleted the handle.
type simulatedStorage struct {
	simulatedPairs
	deleted uint8
}

// state returns the state that an agent observes.
func (p simulatedPairs) state(verified bool) State {
	h := State{
		Namespace: "velero", Name: "du", UID: "du-uid", ExposingNode: "n1", Verified: verified,
		Source: types.NamespacedName{Namespace: "apps", Name: "snap"},
	}
	h.Original.Snapshot, h.Backup.Snapshot, h.Backup.Content = p.original.original(), p.backup.backup(h), p.backupContent.backup(h)
	if h.SourceContent() == "content" { // otherwise no object names the content
		h.Original.Content = p.content.original()
	}
	return h
}

func (s simulatedSnapshot) original() *snapshotv1.VolumeSnapshot {
	if !s.exists {
		return nil
	}
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: simulatedMeta("apps", "snap", s.deleting),
		Status:     &snapshotv1.VolumeSnapshotStatus{ReadyToUse: &s.ready, BoundVolumeSnapshotContentName: new("content")},
	}
}

func (s simulatedSnapshot) backup(h State) *snapshotv1.VolumeSnapshot {
	if !s.exists {
		return nil
	}
	created := &snapshotv1.VolumeSnapshot{ObjectMeta: simulatedMeta(h.Namespace, h.Name, s.deleting)}
	created.Spec.Source.VolumeSnapshotContentName = &h.Name
	switch s.creator {
	case lateen:
		created.Labels = h.OwnerLabels()
		created.Annotations = map[string]string{api.AnnotationSourceContent: "content", api.AnnotationSourceSnapshot: "apps/snap"}
	case anotherTransfer:
		created.Labels = objects.OwnerLabels("another", "n1")
	case velero:
	}
	return created
}

func (c simulatedContent) original() *snapshotv1.VolumeSnapshotContent {
	return c.object("content", types.NamespacedName{Namespace: "apps", Name: "snap"})
}

func (c simulatedContent) backup(h State) *snapshotv1.VolumeSnapshotContent {
	created := c.object(h.Name, types.NamespacedName{Namespace: h.Namespace, Name: h.Name})
	if created == nil {
		return nil
	}
	created.Spec.Source.SnapshotHandle = new("handle")
	switch c.creator {
	case lateen:
		created.Labels = h.OwnerLabels()
	case anotherTransfer:
		created.Labels = objects.OwnerLabels("another", "n1")
	case velero:
	}
	return created
}

func (c simulatedContent) object(name string, of types.NamespacedName) *snapshotv1.VolumeSnapshotContent {
	if !c.exists {
		return nil
	}
	object := &snapshotv1.VolumeSnapshotContent{ObjectMeta: simulatedMeta("", name, c.deleting)}
	object.Spec.VolumeSnapshotRef = corev1.ObjectReference{Namespace: of.Namespace, Name: of.Name, UID: types.UID(of.Name + "-uid")}
	object.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentDelete
	if c.retained {
		object.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
	}
	if c.markedBeingDeleted {
		object.Annotations = MarkedBeingDeleted()
	}
	if c.protected {
		object.Finalizers = []string{finalizerContent}
	}
	if c.handle {
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
	pair := func(at func(*simulatedStorage) (*simulatedSnapshot, *simulatedContent)) {
		snapshot, content := at(&s)
		deleting := snapshot.exists && snapshot.deleting
		may(snapshot.exists && !deleting && !snapshot.protected && content.exists, func(s *simulatedStorage) { v, _ := at(s); v.protected = true })
		may(content.exists && !content.deleting && !content.protected, func(s *simulatedStorage) { _, c := at(s); c.protected = true })
		may(deleting && content.exists && !content.markedBeingDeleted, func(s *simulatedStorage) { _, c := at(s); c.markedBeingDeleted = true })
		may(deleting && content.exists && content.markedBeingDeleted && !content.retained && !content.deleting, func(s *simulatedStorage) { _, c := at(s); c.delete() })
		may(deleting && (!content.exists || content.markedBeingDeleted && content.retained), func(s *simulatedStorage) { v, _ := at(s); *v = simulatedSnapshot{} })
		may(content.exists && !content.deleting && !content.handle && s.deleted == 0, func(s *simulatedStorage) { _, c := at(s); c.handle = true })
		may(content.exists && content.deleting && content.markedBeingDeleted, func(s *simulatedStorage) {
			_, c := at(s)
			if c.handle && !c.retained {
				s.deleted++
			}
			*c = simulatedContent{}
		})
	}
	pair(func(s *simulatedStorage) (*simulatedSnapshot, *simulatedContent) { return &s.original, &s.content })
	pair(func(s *simulatedStorage) (*simulatedSnapshot, *simulatedContent) { return &s.backup, &s.backupContent })
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

func (s *simulatedSnapshot) delete() {
	s.deleting = true
	if !s.protected {
		*s = simulatedSnapshot{}
	}
}

func (c *simulatedContent) delete() {
	c.deleting = true
	if !c.protected {
		*c = simulatedContent{}
	}
}
