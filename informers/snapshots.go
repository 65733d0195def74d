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

// firstList is how long Available waits for the first list of snapshots.
const firstList = 30 * time.Second

var errNotCoordinating = errors.New("read snapshots: this agent is not the coordinator")

// Snapshots caches the VolumeSnapshots and VolumeSnapshotContents of a cluster that has them:
//
//	VolumeSnapshots          all namespaces: originals are in those of their volumes, ours in Velero's
//	VolumeSnapshotContents   all: cluster-scoped
//
// Only the coordinator needs them. They start with the first call of Available.
type Snapshots struct {
	client  snapshotclient.SnapshotV1Interface
	groups  discovery.ServerResourcesInterface
	enqueue func(namespace, name string)
	failing Watchdog

	lock sync.Mutex
	term *snapshotTerm // nil while this agent does not coordinate
}

// snapshotTerm is the state of one term of a coordinator.
type snapshotTerm struct {
	ctx       context.Context // ends with the term
	running   sync.WaitGroup
	started   bool
	handled   []cache.DoneChecker
	snapshots *Informer[*snapshotv1.VolumeSnapshot]
	contents  *Informer[*snapshotv1.VolumeSnapshotContent]
}

// NewSnapshots returns the caches, stopped. They call enqueue with a VolumeSnapshot that is added, updated or
// deleted, and with the VolumeSnapshot of such a content. The watchdog reports requests that fail.
func NewSnapshots(client snapshotclient.SnapshotV1Interface, groups discovery.ServerResourcesInterface, enqueue func(namespace, name string), failing Watchdog) *Snapshots {
	return &Snapshots{client: client, groups: groups, enqueue: enqueue, failing: failing}
}

// Run allows the caches to start until the context of a coordinator's term ends. It returns when every watch has
// stopped. Terms do not overlap.
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

// Available reports whether the API server has snapshot.storage.k8s.io/v1. If so, it starts the caches and waits for
// their first list. It asks the API server until the answer is yes, then no more in this term. Outside of a term, or
// without an answer, it returns an error.
func (s *Snapshots) Available(ctx context.Context) (bool, error) {
	term, err := s.start()
	if term == nil || err != nil {
		return false, err
	}
	ctx, cancel := context.WithTimeout(ctx, firstList)
	defer cancel()
	defer context.AfterFunc(term.ctx, cancel)() //nolint:contextcheck // the end of the term also ends the wait
	if !cache.WaitFor(ctx, "", term.handled...) {
		return false, errors.New("read snapshots: caches are not synced yet")
	}
	return true, nil
}

// start starts the caches and returns the term, or nil if the cluster has no snapshots. It does not hold the lock
// during its request: a slow answer must not delay the reads of others.
func (s *Snapshots) start() (*snapshotTerm, error) {
	term, started := s.current()
	switch {
	case term == nil || term.ctx.Err() != nil:
		return nil, errNotCoordinating
	case started:
		return term, nil
	}
	_, err := s.groups.ServerResourcesForGroupVersion(snapshotv1.SchemeGroupVersion.String())
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list resources of %s: %w", snapshotv1.SchemeGroupVersion, err)
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	switch {
	case s.term != term:
		return nil, errNotCoordinating
	case term.started:
		return term, nil
	}
	return term, term.watch(s)
}

// current returns the term, or nil, and whether its caches are started.
func (s *Snapshots) current() (term *snapshotTerm, started bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.term, s.term != nil && s.term.started
}

func (s *snapshotTerm) watch(of *Snapshots) error {
	b := group{}
	s.snapshots = add(&b, "volumesnapshots", of.client.VolumeSnapshots(metav1.NamespaceAll), &snapshotv1.VolumeSnapshot{}, Scope{}, trimSnapshot)
	s.contents = add(&b, "volumesnapshotcontents", of.client.VolumeSnapshotContents(), &snapshotv1.VolumeSnapshotContent{}, Scope{}, noTrim[*snapshotv1.VolumeSnapshotContent])
	if b.err != nil {
		return b.err
	}
	handledSnapshots, err1 := s.snapshots.AddHandler(func(snapshot *snapshotv1.VolumeSnapshot) {
		of.enqueue(snapshot.Namespace, snapshot.Name)
	})
	handledContents, err2 := s.contents.AddHandler(func(content *snapshotv1.VolumeSnapshotContent) {
		of.enqueue(content.Spec.VolumeSnapshotRef.Namespace, content.Spec.VolumeSnapshotRef.Name)
	})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	b.Watch(of.failing)
	s.handled, s.started = []cache.DoneChecker{handledSnapshots, handledContents}, true
	s.running.Go(func() { b.Run(s.ctx) })
	return nil
}

// trimSnapshot keeps what a handover copies and reads. It drops owners and the annotation of kubectl apply.
func trimSnapshot(snapshot *snapshotv1.VolumeSnapshot) {
	snapshot.OwnerReferences = nil
	delete(snapshot.Annotations, corev1.LastAppliedConfigAnnotation)
}

// Snapshot returns a cached VolumeSnapshot; nil if there is none.
func (s *Snapshots) Snapshot(namespace, name string) *snapshotv1.VolumeSnapshot {
	term := s.running()
	if term == nil {
		return nil
	}
	snapshot, _ := term.snapshots.Get(cache.NewObjectName(namespace, name).String())
	return snapshot
}

// Content returns a cached VolumeSnapshotContent; nil if there is none.
func (s *Snapshots) Content(name string) *snapshotv1.VolumeSnapshotContent {
	term := s.running()
	if term == nil {
		return nil
	}
	content, _ := term.contents.Get(name)
	return content
}

// Deleted records that this agent deleted a VolumeSnapshot, or a VolumeSnapshotContent, which has no namespace.
func (s *Snapshots) Deleted(object metav1.Object) {
	term := s.running()
	switch {
	case term == nil:
	case object.GetNamespace() == "":
		term.contents.RecordDeletion(Key(object), object.GetUID())
	default:
		term.snapshots.RecordDeletion(Key(object), object.GetUID())
	}
}

// Client returns the client for writes, and for reads that must not be stale.
func (s *Snapshots) Client() snapshotclient.SnapshotV1Interface { return s.client }

// running returns the term if its caches are started; else nil.
func (s *Snapshots) running() *snapshotTerm {
	if term, started := s.current(); started {
		return term
	}
	return nil
}
