package handover

import (
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// maker is the creator of a backup object.
type maker uint8

const (
	lateen maker = iota
	velero
	somebody
)

// toySnapshot is the relevant state of a VolumeSnapshot. The zero value is one that does not exist.
type toySnapshot struct {
	there, ending bool
	guarded       bool  // has the finalizers of the snapshot-controller
	ready         bool  // of an original
	maker         maker // of a backup
}

// toyContent is the relevant state of a VolumeSnapshotContent.
type toyContent struct {
	there, ending, guarded bool
	retained, freed        bool
	handle                 bool // is in the status, where the sidecar reads the handle to delete
	maker                  maker
}

// toyPairs are the four objects of a hand-over, in reality or in a view.
type toyPairs struct {
	original toySnapshot
	content  toyContent // of the original
	backup   toySnapshot
	copied   toyContent // of the backup
}

// toyStorage is the state of the API server, and how often the driver deleted the handle.
type toyStorage struct {
	toyPairs
	deleted uint8
}

// seen returns the state that an agent observes.
func (p toyPairs) seen(known bool) State {
	h := State{
		Namespace: "velero", Name: "du", UID: "du-uid", ExposingNode: "n1", Verified: known,
		Source: types.NamespacedName{Namespace: "apps", Name: "snap"},
	}
	h.Original.Snapshot, h.Backup.Snapshot, h.Backup.Content = p.original.original(), p.backup.made(h), p.copied.made(h)
	if h.SourceContent() == "content" { // otherwise no object names the content
		h.Original.Content = p.content.original()
	}
	return h
}

func (s toySnapshot) original() *snapshotv1.VolumeSnapshot {
	if !s.there {
		return nil
	}
	return &snapshotv1.VolumeSnapshot{
		ObjectMeta: toyMeta("apps", "snap", s.ending),
		Status:     &snapshotv1.VolumeSnapshotStatus{ReadyToUse: &s.ready, BoundVolumeSnapshotContentName: new("content")},
	}
}

func (s toySnapshot) made(h State) *snapshotv1.VolumeSnapshot {
	if !s.there {
		return nil
	}
	created := &snapshotv1.VolumeSnapshot{ObjectMeta: toyMeta(h.Namespace, h.Name, s.ending)}
	created.Spec.Source.VolumeSnapshotContentName = &h.Name
	switch s.maker {
	case lateen:
		created.Labels = h.OwnerLabels()
		created.Annotations = map[string]string{api.AnnotationSourceContent: "content", api.AnnotationSourceSnapshot: "apps/snap"}
	case somebody:
		created.Labels = objects.OwnerLabels("another", "n1")
	case velero:
	}
	return created
}

func (c toyContent) original() *snapshotv1.VolumeSnapshotContent {
	return c.object("content", types.NamespacedName{Namespace: "apps", Name: "snap"})
}

func (c toyContent) made(h State) *snapshotv1.VolumeSnapshotContent {
	created := c.object(h.Name, types.NamespacedName{Namespace: h.Namespace, Name: h.Name})
	if created == nil {
		return nil
	}
	created.Spec.Source.SnapshotHandle = new("handle")
	switch c.maker {
	case lateen:
		created.Labels = h.OwnerLabels()
	case somebody:
		created.Labels = objects.OwnerLabels("another", "n1")
	case velero:
	}
	return created
}

func (c toyContent) object(name string, of types.NamespacedName) *snapshotv1.VolumeSnapshotContent {
	if !c.there {
		return nil
	}
	object := &snapshotv1.VolumeSnapshotContent{ObjectMeta: toyMeta("", name, c.ending)}
	object.Spec.VolumeSnapshotRef = corev1.ObjectReference{Namespace: of.Namespace, Name: of.Name, UID: types.UID(of.Name + "-uid")}
	object.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentDelete
	if c.retained {
		object.Spec.DeletionPolicy = snapshotv1.VolumeSnapshotContentRetain
	}
	if c.freed {
		object.Annotations = MarkedBeingDeleted()
	}
	if c.guarded {
		object.Finalizers = []string{finalizerContent}
	}
	if c.handle {
		object.Status = &snapshotv1.VolumeSnapshotContentStatus{SnapshotHandle: new("handle")}
	}
	return object
}

func toyMeta(namespace, name string, ending bool) metav1.ObjectMeta {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name + "-uid")}
	if ending {
		meta.DeletionTimestamp = &metav1.Time{}
	}
	return meta
}

// controllers returns the possible next actions of the snapshot-controller and the driver's sidecar, each on its
// own.
func (s toyStorage) controllers() []toyStorage {
	var next []toyStorage
	may := func(can bool, do func(*toyStorage)) {
		if can {
			then := s
			do(&then)
			next = append(next, then)
		}
	}
	pair := func(at func(*toyStorage) (*toySnapshot, *toyContent)) {
		snapshot, content := at(&s)
		going := snapshot.there && snapshot.ending
		may(snapshot.there && !going && !snapshot.guarded && content.there, func(s *toyStorage) { v, _ := at(s); v.guarded = true })
		may(content.there && !content.ending && !content.guarded, func(s *toyStorage) { _, c := at(s); c.guarded = true })
		may(going && content.there && !content.freed, func(s *toyStorage) { _, c := at(s); c.freed = true })
		may(going && content.there && content.freed && !content.retained && !content.ending, func(s *toyStorage) { _, c := at(s); c.delete() })
		may(going && (!content.there || content.freed && content.retained), func(s *toyStorage) { v, _ := at(s); *v = toySnapshot{} })
		may(content.there && !content.ending && !content.handle && s.deleted == 0, func(s *toyStorage) { _, c := at(s); c.handle = true })
		may(content.there && content.ending && content.freed, func(s *toyStorage) {
			_, c := at(s)
			if c.handle && !c.retained {
				s.deleted++
			}
			*c = toyContent{}
		})
	}
	pair(func(s *toyStorage) (*toySnapshot, *toyContent) { return &s.original, &s.content })
	pair(func(s *toyStorage) (*toySnapshot, *toyContent) { return &s.backup, &s.copied })
	return next
}

// settled returns the storage after all actions of the controllers.
func (s toyStorage) settled() toyStorage {
	for next := s.controllers(); len(next) > 0; next = s.controllers() {
		s = next[0]
	}
	return s
}

// safe reports whether the handle stays if no agent acts from now on.
func (s toyStorage) safe() bool {
	s = s.settled()
	return s.deleted == 0 && (s.content.there || s.copied.there && s.copied.maker != somebody)
}

func (s *toySnapshot) delete() {
	s.ending = true
	if !s.guarded {
		*s = toySnapshot{}
	}
}

func (c *toyContent) delete() {
	c.ending = true
	if !c.guarded {
		*c = toyContent{}
	}
}
