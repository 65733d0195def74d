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

// kind is one kind of custom resource: what has its queue, without the type of its resources.
type kind interface {
	wake(key string)
	enqueueUnsettled()
	enqueueNode(node string)
	wire(caches *informers.Caches) ([]cache.DoneChecker, error)
	wireTerm(caches *informers.Caches, term *informers.Term) ([]cache.DoneChecker, error)
	resume() (first []string)
	run(ctx context.Context, first []string)
	ready() <-chan struct{}
	count() []metrics.Count
	owner(uid types.UID) (exists, done bool)
}

// line is a kind.
type line[T transfer.Object] struct {
	transfers  *reconcile.Transfers[T]
	controller *reconcile.Controller
	resources  resources[T]
}

// resources are those of one kind, as the API server has them; an informer is one.
type resources[T transfer.Object] interface {
	Get(key string) (T, bool)
	List() []T
	By(index, word string) []T
	Index(name string, of func(T) []string) error
	Handle(wake func(T)) (cache.DoneChecker, error)
}

// newLine puts together what one kind needs besides what all kinds share.
func newLine[T transfer.Object](
	p *parts, what transfer.Kind[T], shared reconcile.Shared, resources resources[T], client reconcile.Patcher[T],
) *line[T] {
	transfers := &reconcile.Transfers[T]{
		Kind: what, Shared: shared, Cached: resources.Get, Client: client,
		Changed: func(T, transfer.State, transfer.State) {}, Gone: func(T) {},
	}
	controller := reconcile.NewController(reconcile.Options{
		Name: what.Name, Workers: p.Config.Workers, Grace: stepGrace, Clock: p.Clock, Metrics: p.Metrics.Workqueues(),
	}, transfers.Reconcile)
	transfers.Wake = controller.Wake
	l := &line[T]{transfers: transfers, controller: controller, resources: resources}
	transfers.Siblings = l.siblings
	return l
}

// kinds are all four, in the order in which a backup and its restore use them.
func (p *parts) kinds(shared reconcile.Shared) []kind {
	velero, namespace := p.clients.velero, p.Config.Namespace
	backups := newLine(p, transfer.PodVolumeBackup(), shared, p.caches.PodVolumeBackups, reconcile.Patcher[*velerov1.PodVolumeBackup](velero.PodVolumeBackups(namespace)))
	backups.transfers.Changed = p.backupChanged
	backups.transfers.Gone = func(backup *velerov1.PodVolumeBackup) { p.Metrics.BackupForgotten(backup.Name) }
	restores := newLine(p, transfer.PodVolumeRestore(), shared, p.caches.PodVolumeRestores, reconcile.Patcher[*velerov1.PodVolumeRestore](velero.PodVolumeRestores(namespace)))
	uploads := newLine(p, transfer.DataUpload(), shared, p.caches.DataUploads, reconcile.Patcher[*velerov2alpha1.DataUpload](velero.DataUploads(namespace)))
	uploads.transfers.Changed = func(_ *velerov2alpha1.DataUpload, _, after transfer.State) {
		p.dataMoved(uploads.transfers.Kind.Name, after)
	}
	downloads := newLine(p, transfer.DataDownload(), shared, p.caches.DataDownloads, reconcile.Patcher[*velerov2alpha1.DataDownload](velero.DataDownloads(namespace)))
	downloads.transfers.Changed = func(_ *velerov2alpha1.DataDownload, _, after transfer.State) {
		p.dataMoved(downloads.transfers.Kind.Name, after)
	}
	return []kind{backups, restores, uploads, downloads}
}

func (l *line[T]) wake(key string) { l.controller.Wake(key) }

// enqueueUnsettled enqueues all that somebody still has to do something about: who acts has changed.
func (l *line[T]) enqueueUnsettled() {
	for _, object := range l.resources.List() {
		if !l.transfers.Kind.Get(object).Settled() {
			l.wake(informers.Key(object))
		}
	}
}

// enqueueNode enqueues what depends on the agent of a node, and what may.
func (l *line[T]) enqueueNode(node string) {
	for _, name := range []string{node, ""} {
		for _, object := range l.resources.By(informers.ByNode, name) {
			l.wake(informers.Key(object))
		}
	}
}

// wire says which keys an object of an agent's caches wakes: a resource itself, and what was made for it.
func (l *line[T]) wire(caches *informers.Caches) ([]cache.DoneChecker, error) {
	name := l.transfers.Kind.GVK.Kind
	err0 := l.index()
	own, err1 := l.resources.Handle(func(object T) {
		l.note(object)
		l.wake(informers.Key(object))
		l.enqueueSiblings(object)
	})
	here, err2 := caches.Here.Handle(caches.Heard(informers.Controller[*corev1.Pod](name, l.wake)))
	movers, err3 := caches.Movers.Handle(caches.Heard(informers.Controller[*corev1.Pod](name, l.wake)))
	claims, err4 := caches.Claims.Handle(informers.Controller[*corev1.PersistentVolumeClaim](name, l.wake))
	return []cache.DoneChecker{own, here, movers, claims}, errors.Join(err0, err1, err2, err3, err4)
}

func (l *line[T]) index() error {
	return l.resources.Index(informers.ByNode, func(object T) []string { return l.transfers.Kind.Get(object).Nodes() })
}

// wireTerm adds the movers that only a coordinator watches.
func (l *line[T]) wireTerm(caches *informers.Caches, term *informers.Term) ([]cache.DoneChecker, error) {
	movers, err := term.Movers.Handle(caches.Heard(informers.Controller[*corev1.Pod](l.transfers.Kind.GVK.Kind, l.wake)))
	return []cache.DoneChecker{movers}, err
}

// note tells admission of a resource. What is deleted is still handed over, so the cache is asked.
func (l *line[T]) note(object T) {
	if current, ok := l.resources.Get(informers.Key(object)); ok && current.GetUID() == object.GetUID() {
		l.transfers.Note(current)
		return
	}
	l.transfers.Admission.Forget(object.GetUID())
	l.transfers.Places.Release(object.GetUID())
}

func (l *line[T]) resume() []string {
	owned := l.transfers.Owned(l.resources.List())
	l.transfers.Resume(owned)
	return keys(owned)
}

func (l *line[T]) run(ctx context.Context, first []string) { l.controller.Run(ctx, first) }
func (l *line[T]) ready() <-chan struct{}                  { return l.controller.Ready() }
func (l *line[T]) count() []metrics.Count                  { return l.transfers.Count(l.resources.List()) }

func keys[T metav1.Object](objects []T) []string {
	all := make([]string, 0, len(objects))
	for _, object := range objects {
		all = append(all, informers.Key(object))
	}
	return all
}
