package agent

import (
	"context"
	"errors"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// kind is one kind of custom resource with its queue. It hides the Go type of the resources.
type kind interface {
	name() string
	enqueue(key string)
	enqueueUnsettled()
	enqueueNode(node string)
	agentReturned(node string)
	addHandlers(caches *informers.Caches) ([]cache.DoneChecker, error)
	addTermHandlers(caches *informers.Caches, term *informers.CoordinatorCaches) ([]cache.DoneChecker, error)
	resume() (first []string)
	run(ctx context.Context, first []string)
	ready() <-chan struct{}
	count() []metrics.Count
	owner(uid types.UID) (exists, done bool)
	settled() (keys []string)
	labelDone(ctx context.Context, key string) error
}

// kindController implements kind.
type kindController[T transfer.Object] struct {
	transfers  *reconcile.TransferReconciler[T]
	controller *reconcile.Controller
	resources  resources[T]
}

// resources reads the resources of one kind from a cache. An informer implements it.
type resources[T transfer.Object] interface {
	Get(key string) (T, bool)
	List() []T
	ByIndex(index, word string) []T
	Index(name string, of func(T) []string) error
	AddHandler(enqueue func(T)) (cache.DoneChecker, error)
}

// newKindController connects one kind to its queue and to the shared dependencies.
func newKindController[T transfer.Object](
	p *assembly, what transfer.Kind[T], shared reconcile.Dependencies, resources resources[T], client reconcile.Patcher[T],
) *kindController[T] {
	transfers := &reconcile.TransferReconciler[T]{
		Kind: what, Dependencies: shared, Cached: resources.Get, Client: client,
		OnUpdate: func(_ T, _, after transfer.State) { p.dataMoved(what.Name, after) },
	}
	controller := reconcile.NewController(reconcile.Options{
		Name: what.Name, Workers: p.Flags.Workers, Grace: stepGrace, Clock: p.Clock, Metrics: p.Metrics.Workqueues(),
		Queue: p.queue(what.Name),
	}, transfers.Reconcile)
	transfers.Enqueue = controller.Enqueue
	l := &kindController[T]{transfers: transfers, controller: controller, resources: resources}
	transfers.Siblings = l.siblings
	return l
}

// kindSet holds the queues of all kinds.
type kindSet struct {
	all []kind
	// the kinds that events of objects without an owner also enqueue: pods of restores, snapshots of uploads
	restores, uploads kind
}

// kinds returns all kinds, in the order of the table.
func (p *assembly) kinds(shared reconcile.Dependencies) kindSet {
	velero, namespace := p.clients.velero, p.Flags.Namespace
	backups := newKindController(p, transfer.PodVolumeBackup(), shared, p.caches.PodVolumeBackups, reconcile.Patcher[*velerov1.PodVolumeBackup](velero.PodVolumeBackups(namespace)))
	backups.transfers.OnUpdate = p.backupChanged
	restores := newKindController(p, transfer.PodVolumeRestore(), shared, p.caches.PodVolumeRestores, reconcile.Patcher[*velerov1.PodVolumeRestore](velero.PodVolumeRestores(namespace)))
	uploads := newKindController(p, transfer.DataUpload(), shared, p.caches.DataUploads, reconcile.Patcher[*velerov2alpha1.DataUpload](velero.DataUploads(namespace)))
	downloads := newKindController(p, transfer.DataDownload(), shared, p.caches.DataDownloads, reconcile.Patcher[*velerov2alpha1.DataDownload](velero.DataDownloads(namespace)))
	return kindSet{all: []kind{backups, restores, uploads, downloads}, restores: restores, uploads: uploads}
}

func (l *kindController[T]) name() string { return l.transfers.Kind.Name }

func (l *kindController[T]) enqueue(key string) { l.controller.Enqueue(key) }

// enqueueUnsettled enqueues every resource that still needs an action. It is called when the acting agent changes.
func (l *kindController[T]) enqueueUnsettled() {
	for _, object := range l.resources.List() {
		if !l.transfers.Kind.Get(object).Settled() {
			l.enqueue(informers.Key(object))
		}
	}
}

// enqueueNode enqueues the resources of a node, and those that have no node yet.
func (l *kindController[T]) enqueueNode(node string) {
	for _, name := range []string{node, ""} {
		for _, object := range l.resources.ByIndex(informers.ByNode, name) {
			l.enqueue(informers.Key(object))
		}
	}
}

// agentReturned enqueues the resources that a coordinator left to the agent of that node, which is Ready again.
func (l *kindController[T]) agentReturned(node string) {
	for _, object := range l.resources.ByIndex(informers.ByNode, "") {
		l.transfers.AgentReturned(informers.Key(object), node)
	}
}

// addHandlers registers the event handlers of an agent's caches: for the resources, and for the objects created for
// them.
func (l *kindController[T]) addHandlers(caches *informers.Caches) ([]cache.DoneChecker, error) {
	name := l.transfers.Kind.GVK.Kind
	err0 := l.index()
	own, err1 := l.resources.AddHandler(func(object T) {
		l.note(object)
		l.enqueue(informers.Key(object))
		l.enqueueSiblings(object)
	})
	here, err2 := caches.LocalPods.AddHandler(caches.DropCreated(informers.EnqueueOwner[*corev1.Pod](name, l.enqueue)))
	movers, err3 := caches.Movers.AddHandler(caches.DropCreated(informers.EnqueueOwner[*corev1.Pod](name, l.enqueue)))
	claims, err4 := caches.Claims.AddHandler(informers.EnqueueOwner[*corev1.PersistentVolumeClaim](name, l.enqueue))
	return []cache.DoneChecker{own, here, movers, claims}, errors.Join(err0, err1, err2, err3, err4)
}

func (l *kindController[T]) index() error {
	return l.resources.Index(informers.ByNode, func(object T) []string { return l.transfers.Kind.Get(object).Nodes() })
}

// addTermHandlers registers the handlers for the movers and claims that only a coordinator watches.
func (l *kindController[T]) addTermHandlers(caches *informers.Caches, term *informers.CoordinatorCaches) ([]cache.DoneChecker, error) {
	name := l.transfers.Kind.GVK.Kind
	movers, err1 := term.Movers.AddHandler(caches.DropCreated(informers.EnqueueOwner[*corev1.Pod](name, l.enqueue)))
	claims, err2 := term.Claims.AddHandler(informers.EnqueueOwner[*corev1.PersistentVolumeClaim](name, l.enqueue))
	return []cache.DoneChecker{movers, claims}, errors.Join(err1, err2)
}

// note passes a resource to admission. A handler also receives deleted objects, so note checks the cache.
func (l *kindController[T]) note(object T) {
	if current, ok := l.resources.Get(informers.Key(object)); ok && current.GetUID() == object.GetUID() {
		l.transfers.Observe(current)
		return
	}
	l.transfers.Forget(object.GetUID())
}

func (l *kindController[T]) resume() []string {
	owned := l.transfers.Owned(l.resources.List())
	l.transfers.Resume(owned)
	return keys(owned)
}

func (l *kindController[T]) run(ctx context.Context, first []string) { l.controller.Run(ctx, first) }
func (l *kindController[T]) ready() <-chan struct{}                  { return l.controller.Ready() }
func (l *kindController[T]) count() []metrics.Count                  { return l.transfers.Count(l.resources.List()) }

func (l *kindController[T]) settled() []string { return l.transfers.Settled(l.resources.List()) }

func (l *kindController[T]) labelDone(ctx context.Context, key string) error {
	return l.transfers.LabelDone(ctx, key)
}

func keys[T metav1.Object](objects []T) []string {
	all := make([]string, 0, len(objects))
	for _, object := range objects {
		all = append(all, informers.Key(object))
	}
	return all
}

// siblings returns the unfinished restores into other volumes of the same pod. They are on the same node, or have
// none yet.
func (l *kindController[T]) siblings(object T) (found []T) {
	for _, name := range []string{l.transfers.Kind.Get(object).Node, ""} {
		for _, other := range l.resources.ByIndex(informers.ByNode, name) {
			if l.transfers.SharePod(object, other) {
				found = append(found, other)
			}
		}
	}
	return found
}

// enqueueSiblings enqueues the restores that may wait for this one after it changed or was deleted.
func (l *kindController[T]) enqueueSiblings(object T) {
	if !l.transfers.Kind.Restores || l.transfers.Kind.Rebinds {
		return
	}
	for _, other := range l.siblings(object) {
		if l.transfers.AwaitsSibling(other) {
			l.enqueue(informers.Key(other))
		}
	}
}

// backupChanged updates the metrics that Velero itself has for PodVolumeBackups.
func (p *assembly) backupChanged(backup *velerov1.PodVolumeBackup, before, after transfer.State) {
	switch {
	case before.Phase.NeedsSlot() && after.Phase.IsMoving():
		p.Metrics.BackupStarted()
	case after.Phase.HasSucceeded():
		names := transfer.VeleroMetricNames(backup)
		p.Metrics.BackupCompleted(names.Operation, names.Backup, backup.Name, after.CompletedAt.Sub(after.StartedAt))
	}
}

// dataMoved updates the metrics that Velero itself has for DataUploads and DataDownloads.
func (p *assembly) dataMoved(kind string, after transfer.State) {
	if after.Phase.Terminal() {
		p.Metrics.DataMoved(kind, string(after.Phase))
	}
}
