package handover

import (
	"testing"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// simulatedRun is a simulated run of an agent: the real state, its caches, and the agent's current view.
type simulatedRun struct {
	storage    simulatedStorage
	cache      simulatedPairs
	view       simulatedPairs
	verified   bool
	cleaningUp bool
	keeps      bool // the snapshot of a class with policy Retain
}

func (s simulatedRun) step() (Step, string) {
	h := s.view.state(s.verified)
	if s.cleaningUp {
		return h.NextCleanup()
	}
	return h.Next()
}

// restart starts another run, of this agent or another one. It starts from the caches.
func (s simulatedRun) restart() simulatedRun {
	s.view, s.verified = s.cache, false
	return s
}

// resync is restart with up-to-date caches.
func (s simulatedRun) resync() simulatedRun {
	s.cache = s.storage.simulatedPairs
	return s.restart()
}

// of returns the object that a step changes, or nil.
func (s *simulatedPairs) of(step Step) *simulatedObject {
	switch step {
	case DeleteOriginal:
		return &s.original
	case DeleteOriginalContent, RetainOriginal, SetDeletePolicyOfOriginal, MarkOriginalContentBeingDeleted:
		return &s.content
	case CreateSnapshot, AdoptSnapshot, DeleteBackup:
		return &s.backup
	case CreateContent, AdoptContent, DeleteBackupContent, SetHandleOfBackup, ReleaseBackupContent, MarkBackupContentBeingDeleted:
		return &s.backupContent
	}
	return nil
}

// execute runs one step and updates the view from the API server's response.
func (s simulatedRun) execute(step Step) simulatedRun {
	there, view := s.storage.of(step), s.view.of(step)
	switch step {
	case Reobserve:
		s.reobserve()
	case CreateSnapshot, CreateContent:
		if !there.exists {
			*there = simulatedObject{exists: true, retained: step == CreateContent && s.keeps && s.view.content.retained}
		}
		*view = *there
	case DeleteOriginal, DeleteBackup, DeleteOriginalContent, DeleteBackupContent:
		if there.exists {
			there.delete()
			view.deleting = true
		} else {
			*view = *there
		}
	case SetHandleOfBackup:
		if *view == *there { // otherwise a conflict
			there.handle, view.handle = true, true
		}
	case AdoptSnapshot, AdoptContent:
		update(there, view, func(o *simulatedObject) { o.creator = lateen })
	case RetainOriginal:
		update(there, view, func(o *simulatedObject) { o.retained = true })
	case ReleaseBackupContent:
		update(there, view, func(o *simulatedObject) { o.creator = velero })
	case SetDeletePolicyOfOriginal:
		update(there, view, func(o *simulatedObject) { o.retained = false })
	case MarkOriginalContentBeingDeleted, MarkBackupContentBeingDeleted:
		update(there, view, func(o *simulatedObject) { o.markedBeingDeleted = true })
	case Finished, AwaitSnapshot, Fail, NameConflict:
	}
	return s
}

func update(there, view *simulatedObject, change func(*simulatedObject)) {
	if there.exists {
		change(there)
	}
	*view = *there
}

// reobserve reads the objects that the view lacks, in the same way as the exposer.
func (s *simulatedRun) reobserve() {
	there, view := &s.storage, &s.view
	s.verified = true
	if !view.backup.exists {
		view.backup = there.backup
	}
	if !view.original.exists {
		view.original = there.original
	}
	if !view.backupContent.exists && (view.backup.exists || view.original.exists) {
		view.backupContent = there.backupContent
	}
	if !view.content.exists {
		view.content = there.content
	}
}

// stops reports whether this step ends a call.
func (s Step) stops() bool {
	return s == Finished || s == AwaitSnapshot || s == Fail || s == NameConflict
}

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

// controllers returns the possible next actions of the snapshot-controller and the driver's sidecar, each on its own.
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

// simulatedSteps bounds the steps of one call. simulatedCalls bounds the calls from any state to the end.
const simulatedSteps, simulatedCalls = 16, 8

// walkStorages calls visit with each reachable step for a ready snapshot. Agents crash after any step. The transfer ends at any time.
// The caches lag without a bound, but all by the same time. The controllers act in any order. It stops when visit returns false.
func walkStorages(keeps bool, visit func(before, after simulatedRun, step Step) bool) {
	start := simulatedRun{keeps: keeps, storage: simulatedStorage{simulatedPairs: simulatedPairs{
		original: simulatedObject{exists: true, protected: true, ready: true}, content: simulatedObject{exists: true, protected: true, handle: true, retained: keeps},
	}}}.resync()
	visited := map[simulatedRun]bool{start: true}
	for queue := []simulatedRun{start}; len(queue) > 0; queue = queue[1:] {
		next := queue[0].disturbances()
		at := queue[0]
		for range simulatedSteps {
			step, _ := at.step()
			after := at.execute(step)
			if !visit(at, after, step) {
				return
			}
			if step.stops() {
				break
			}
			next = append(next, after.restart())
			at = after
		}
		for _, one := range next {
			if !visited[one] {
				visited[one] = true
				queue = append(queue, one)
			}
		}
	}
}

// disturbances returns the states after one action of another actor.
func (s simulatedRun) disturbances() []simulatedRun {
	ended := s
	ended.cleaningUp = true
	next := []simulatedRun{s.resync(), ended.restart()}
	for _, storage := range s.storage.controllers() {
		one := s
		one.storage = storage
		next = append(next, one)
	}
	return next
}

// runToEnd runs the state machines without disturbance: caches catch up and controllers act between calls. It returns the
// final state and the last step.
func (s simulatedRun) runToEnd() (simulatedRun, Step) {
	step := AwaitSnapshot
	for range simulatedCalls {
		s = s.resync()
		for range simulatedSteps {
			if step, _ = s.step(); step.stops() {
				break
			}
			s = s.execute(step)
		}
		s.storage = s.storage.settled()
		if step == Finished {
			break
		}
	}
	return s, step
}

// storageRules are invariants of each step, stated without the state machines.
func storageRules() map[string]func(before, after simulatedRun, step Step) bool {
	return map[string]func(before, after simulatedRun, step Step) bool{
		"no step of a hand-over can lose the handle": func(before, after simulatedRun, _ Step) bool {
			return before.cleaningUp || !before.storage.keepsHandle() || after.storage.keepsHandle()
		},
		"an undisturbed hand-over does not fail, however stale the caches are": func(before, _ simulatedRun, step Step) bool {
			return before.cleaningUp || step != Fail && step != NameConflict
		},
		"a finished hand-over leaves only the backup pair with the handle": func(before, after simulatedRun, step Step) bool {
			end := after.storage.settled()
			return before.cleaningUp || step != Finished ||
				end.backup.exists && end.backupContent.exists && !end.original.exists && !end.content.exists
		},
		"the handle is never deleted twice": func(_, after simulatedRun, _ Step) bool { return after.storage.settled().deleted <= 1 },
		"a finished clean-up leaves at most a content for the sweep, which deletes the handle": func(before, after simulatedRun, step Step) bool {
			if !before.cleaningUp || step != Finished {
				return true
			}
			alone := simulatedStorage{simulatedPairs: simulatedPairs{backupContent: after.storage.backupContent}, deleted: after.storage.deleted}
			swept, _ := after.runToEnd()
			kept := alone.backupContent.retained && alone.backupContent.creator == velero && swept.storage == alone.settled()
			return after.storage == alone && (kept || swept.storage == simulatedStorage{deleted: 1})
		},
		"a snapshot that is kept is not deleted after its hand-over": func(before, after simulatedRun, _ Step) bool {
			return !before.keeps || !before.storage.backupContent.exists || before.storage.deleted == 1 || after.storage.settled().deleted == 0
		},
		"every run that continues finishes": func(_, after simulatedRun, _ Step) bool {
			_, step := after.runToEnd()
			return step == Finished
		},
	}
}

func TestNoInterleavingLosesASnapshot(t *testing.T) {
	for _, keeps := range []bool{false, true} {
		walkStorages(keeps, func(before, after simulatedRun, step Step) bool {
			for name, holds := range storageRules() {
				if !holds(before, after, step) {
					t.Errorf("violated: %s\nstep   %s\nbefore %+v\nafter  %+v", name, step, before, after)
					return false
				}
			}
			return true
		})
	}
}
