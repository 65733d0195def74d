package informers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/cache"
)

// firstList is how long the first list of snapshots may take before whoever waits for it tries again.
const firstList = 30 * time.Second

// Snapshots caches the VolumeSnapshots and VolumeSnapshotContents of a cluster that has them:
//
//	VolumeSnapshots          all namespaces: originals are in those of their volumes, ours in Velero's
//	VolumeSnapshotContents   all; they have no namespace
//
// Only the coordinator needs them, and only once somebody asks for them.
type Snapshots struct {
	client  snapshotclient.SnapshotV1Interface
	groups  discovery.ServerResourcesInterface
	enqueue func(namespace, name string)

	lock sync.Mutex
	term *snapshotTerm // nil while this agent does not coordinate
}

// snapshotTerm is what there is during one term of a coordinator.
type snapshotTerm struct {
	ctx       context.Context // ends with the term
	running   sync.WaitGroup
	started   bool
	handled   []cache.DoneChecker
	snapshots *deletions[snapshotv1.VolumeSnapshot, *snapshotv1.VolumeSnapshot]
	contents  *deletions[snapshotv1.VolumeSnapshotContent, *snapshotv1.VolumeSnapshotContent]
}

// NewSnapshots prepares the caches. Wake is called with the VolumeSnapshot that is added, changed or deleted,
// and with that of a content.
func NewSnapshots(client snapshotclient.SnapshotV1Interface, groups discovery.ServerResourcesInterface, enqueue func(namespace, name string)) *Snapshots {
	return &Snapshots{client: client, groups: groups, enqueue: enqueue}
}

// Run lets the caches be used until the context, which is a coordinator's term, ends; it returns when every
// watch has stopped. Terms do not overlap.
func (s *Snapshots) Run(ctx context.Context) {
	term := &snapshotTerm{ctx: ctx}
	s.set(term)
	<-ctx.Done()
	s.set(nil)
	term.running.Wait()
}

func (s *Snapshots) set(term *snapshotTerm) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.term = term
}

// Available tells whether the API server has snapshot.storage.k8s.io/v1, and if so starts the caches and waits
// for their first list. It asks the API server until the answer is yes, and never again. Outside of a term,
// and where nobody knows, it is an error.
func (s *Snapshots) Available(ctx context.Context) (bool, error) {
	term, err := s.start()
	if term == nil || err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, firstList)
	defer cancel()
	defer context.AfterFunc(term.ctx, cancel)() //nolint:contextcheck // who waits gives up with the term, too
	if !cache.WaitFor(ctx, "", term.handled...) {
		return false, errors.New("list snapshots for the first time: not done yet")
	}
	return true, nil
}

// start is the term with its caches running, or nil if the cluster has no snapshots.
func (s *Snapshots) start() (*snapshotTerm, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	term := s.term
	switch {
	case term == nil || term.ctx.Err() != nil:
		return nil, errors.New("look at snapshots: this agent does not coordinate")
	case term.started:
		return term, nil
	}
	_, err := s.groups.ServerResourcesForGroupVersion(snapshotv1.SchemeGroupVersion.String())
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("ask for the resources of %s: %w", snapshotv1.SchemeGroupVersion, err)
	}
	if err := term.watch(s.client, s.enqueue); err != nil {
		return nil, err
	}
	return term, nil
}

func (t *snapshotTerm) watch(client snapshotclient.SnapshotV1Interface, enqueue func(namespace, name string)) error {
	b := builder{}
	pairs := add(&b, "volumesnapshots", client.VolumeSnapshots(metav1.NamespaceAll), &snapshotv1.VolumeSnapshot{}, Scope{}, trimSnapshot)
	contents := add(&b, "volumesnapshotcontents", client.VolumeSnapshotContents(), &snapshotv1.VolumeSnapshotContent{}, Scope{}, noTrim[*snapshotv1.VolumeSnapshotContent])
	if b.err != nil {
		return b.err
	}
	t.snapshots, t.contents = newDeletions(pairs), newDeletions(contents)
	heard1, err1 := pairs.AddHandler(func(snapshot *snapshotv1.VolumeSnapshot) {
		t.snapshots.drop(Key(snapshot), snapshot.UID)
		enqueue(snapshot.Namespace, snapshot.Name)
	})
	heard2, err2 := contents.AddHandler(func(content *snapshotv1.VolumeSnapshotContent) {
		t.contents.drop(Key(content), content.UID)
		enqueue(content.Spec.VolumeSnapshotRef.Namespace, content.Spec.VolumeSnapshotRef.Name)
	})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	t.handled, t.started = []cache.DoneChecker{heard1, heard2}, true
	t.running.Go(func() { run(t.ctx, b.made) })
	return nil
}

// trimSnapshot leaves what a hand-over copies and reads. Owners and foreign labels are not among that.
func trimSnapshot(snapshot *snapshotv1.VolumeSnapshot) {
	snapshot.OwnerReferences = nil
	delete(snapshot.Annotations, corev1.LastAppliedConfigAnnotation)
}

// Snapshot is a cached VolumeSnapshot, nil if there is none.
func (s *Snapshots) Snapshot(namespace, name string) *snapshotv1.VolumeSnapshot {
	if term := s.running(); term != nil {
		return term.snapshots.get(cache.NewObjectName(namespace, name).String())
	}
	return nil
}

// Content is a cached VolumeSnapshotContent, nil if there is none.
func (s *Snapshots) Content(name string) *snapshotv1.VolumeSnapshotContent {
	if term := s.running(); term != nil {
		return term.contents.get(name)
	}
	return nil
}

// Deleted notes that this agent has deleted a VolumeSnapshot, or a VolumeSnapshotContent, which has no
// namespace. From now on it is shown as being deleted, whenever the caches hear of that.
func (s *Snapshots) Deleted(object metav1.Object) {
	term := s.running()
	switch {
	case term == nil:
	case object.GetNamespace() == "":
		term.contents.note(Key(object), object.GetUID())
	default:
		term.snapshots.note(Key(object), object.GetUID())
	}
}

// Client changes snapshots, and reads what must not be stale.
func (s *Snapshots) Client() snapshotclient.SnapshotV1Interface { return s.client }

// running is the term if its caches have been started.
func (s *Snapshots) running() *snapshotTerm {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.term == nil || !s.term.started {
		return nil
	}
	return s.term
}
