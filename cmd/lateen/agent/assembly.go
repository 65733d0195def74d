package agent

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/leader"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// stepGrace is how long running reconciles may continue after SIGTERM. The process must exit within 5 s.
const stepGrace = 4 * time.Second

// Options configure an agent.
type Options struct {
	Flags   startup.Options
	Rest    *rest.Config // QPS and burst are replaced by those of Flags
	Metrics *metrics.Metrics
	Limits  transfer.Limits
	Clock   clock.WithTickerAndDelayedExecution
	Log     io.Writer // receives the logs of movers
	Server  *Server

	// the bounds of maintenance; those of Flags take precedence, and 0 selects the defaults
	Maintenance maintenance.Policy

	Election leader.Options // the durations of the election; 0 selects the defaults
	// after this time without a Ready agent on a node, the coordinator acts for it; 0: 1 min
	AgentTimeout time.Duration

	SyncTimeout time.Duration // limit for caches to sync, after which a coordinator releases its Lease; 0: 2 min

	OrphanSweep time.Duration // interval between two sweeps of a coordinator; 0: 10 min

	// For a simulation, which must be repeatable.
	Process  string                                             // distinguishes the processes of one node; empty: random
	Queue    func(name string) workqueue.TypedInterface[string] // makes the queue of a controller; nil: client-go's
	Prepared int                                                // transfers whose movers an agent starts or runs at once; 0: as package capacity says
}

// queue returns the queue of a controller; nil is client-go's.
func (o *Options) queue(name string) workqueue.TypedInterface[string] {
	if o.Queue == nil {
		return nil
	}
	return o.Queue(name)
}

// assembly holds what the construction of the agent needs.
type assembly struct {
	Options
	clients    *clients
	startup    *startup.Startup
	caches     *informers.Caches
	recorder   recorder
	leadership *leadership
	snapshots  *informers.Snapshots // watched only while this agent coordinates
	targets    *informers.Targets
	restored   *informers.Targets
	attached   *informers.Attachments
	exposing   *exposer.Exposer
	class      *moverClass
	own        *ownState
	preparing  *capacity.Preparation
	nodeSlots  *capacity.NodeSlots
	config     atomic.Pointer[config.Config] // in force

	coordination *metrics.Coordination
	maintenance  *metrics.Maintenance
}

// leadership is an agent's view of the fleet while it coordinates. It is empty otherwise.
type leadership struct {
	agents atomic.Pointer[leader.AgentTracker] // nil while this agent does not coordinate
}

// IsCoordinator implements transfer.Fleet.
func (l *leadership) IsCoordinator() bool { return l.agents.Load() != nil }

// Ready, Unavailable, RunsVelero and Lost implement transfer.Fleet.
func (l *leadership) Ready(node string) bool { return l.ask((*leader.AgentTracker).Ready, node) }
func (l *leadership) Unavailable(node string) bool {
	return l.ask((*leader.AgentTracker).Unavailable, node)
}
func (l *leadership) RunsVelero(node string) bool {
	return l.ask((*leader.AgentTracker).RunsVelero, node)
}
func (l *leadership) Lost(node string) bool { return l.ask((*leader.AgentTracker).Lost, node) }

func (l *leadership) ask(whether func(*leader.AgentTracker, string) bool, node string) bool {
	agents := l.agents.Load()
	return agents != nil && whether(agents, node)
}

// kind is one kind of custom resource with its queue. It hides the Go type of the resources.
type kind interface {
	name() string // in metrics and logs
	kind() string // in the API
	enqueue(key string)
	track()
	beginTerm()
	endTerm() func()
	enqueueNode(node string)
	addHandlers(caches *informers.Caches) ([]cache.DoneChecker, error)
	addTermHandlers(caches *informers.Caches, term *informers.CoordinatorCaches) ([]cache.DoneChecker, error)
	resume() (first []string)
	run(ctx context.Context, first []string)
	ready() <-chan struct{}
	count() []metrics.Count
	owner(uid types.UID) (exists, done bool)
	settled() (keys []string)
	labelDone(ctx context.Context, key string) error
	writeProgress(ctx context.Context, key string, reports reconcile.Reports, limiter flowcontrol.RateLimiter) (time.Duration, error)
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
	Record(written T)
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
		Kind: what, Dependencies: shared, Cached: resources.Get, Record: resources.Record, Client: client,
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
	all     []kind
	uploads kind // events of snapshots, which have no owner, enqueue it too
}

// kinds returns all kinds, in the order of the table.
func (a *assembly) kinds(shared reconcile.Dependencies) kindSet {
	velero, namespace := a.clients.velero, a.Flags.Namespace
	backups := newKindController(a, transfer.PodVolumeBackup(), shared, a.caches.PodVolumeBackups, reconcile.Patcher[*velerov1.PodVolumeBackup](velero.PodVolumeBackups(namespace)))
	backups.transfers.OnUpdate = a.backupChanged
	restores := newKindController(a, transfer.PodVolumeRestore(), shared, a.caches.PodVolumeRestores, reconcile.Patcher[*velerov1.PodVolumeRestore](velero.PodVolumeRestores(namespace)))
	uploads := newKindController(a, transfer.DataUpload(), shared, a.caches.DataUploads, reconcile.Patcher[*velerov2alpha1.DataUpload](velero.DataUploads(namespace)))
	downloads := newKindController(a, transfer.DataDownload(), shared, a.caches.DataDownloads, reconcile.Patcher[*velerov2alpha1.DataDownload](velero.DataDownloads(namespace)))
	return kindSet{all: []kind{backups, restores, uploads, downloads}, uploads: uploads}
}

func (k *kindController[T]) name() string { return k.transfers.Kind.Name }
func (k *kindController[T]) kind() string { return k.transfers.Kind.GVK.Kind }

func (k *kindController[T]) enqueue(key string) { k.controller.Enqueue(key) }

// track counts what all resources hold.
func (k *kindController[T]) track() {
	for _, object := range k.unsettled() {
		k.transfers.CountCapacity(informers.Key(object), object.GetUID())
	}
}

// beginTerm enqueues the resources that still need an action. The oldest is the first: it is to be accepted first.
func (k *kindController[T]) beginTerm() {
	all := k.unsettled()
	slices.SortFunc(all, func(a, b T) int { return a.GetCreationTimestamp().Compare(b.GetCreationTimestamp().Time) })
	for _, object := range all {
		k.enqueue(informers.Key(object))
	}
}

// endTerm returns what is to be done once the caches of the term are gone. It forgets the resources of other nodes, and
// enqueues those of this one: between the two, no event reports a deletion, or what another coordinator has accepted.
func (k *kindController[T]) endTerm() func() {
	all := k.unsettled()
	return func() {
		keys := sets.New[string]()
		for _, object := range append(all, k.unsettled()...) {
			keys.Insert(informers.Key(object))
			if _, own := k.resources.Get(informers.Key(object)); !own {
				k.transfers.ReleaseCapacity(object.GetUID())
			}
		}
		for key := range keys {
			k.enqueue(key)
		}
	}
}

// unsettled returns the resources that still need an action.
func (k *kindController[T]) unsettled() []T {
	return slices.DeleteFunc(k.resources.List(), func(object T) bool { return k.transfers.Kind.Get(object).Settled() })
}

// enqueueNode enqueues the resources of a node, and those that have no node yet.
func (k *kindController[T]) enqueueNode(node string) {
	for _, name := range []string{node, ""} {
		for _, object := range k.resources.ByIndex(informers.ByNode, name) {
			k.enqueue(informers.Key(object))
		}
	}
}

// addHandlers registers the event handlers of an agent's caches: for the resources, and for the objects created for
// them.
func (k *kindController[T]) addHandlers(caches *informers.Caches) ([]cache.DoneChecker, error) {
	name := k.transfers.Kind.GVK.Kind
	err0 := k.index()
	own, err1 := k.resources.AddHandler(func(object T) {
		k.transfers.CountCapacity(informers.Key(object), object.GetUID()) // the object may be deleted
		k.enqueue(informers.Key(object))
		k.enqueueSiblings(object)
	})
	ofMover := informers.EnqueueOwner[*corev1.Pod](name, k.enqueue)
	here, err2 := caches.LocalPods.AddHandler(caches.DropCreated(func(pod *corev1.Pod) {
		ofMover(pod)
		k.enqueueOfPod(pod)
	}))
	movers, err3 := caches.Movers.AddHandler(caches.DropCreated(ofMover))
	claims, err4 := caches.Claims.AddHandler(informers.EnqueueOwner[*corev1.PersistentVolumeClaim](name, k.enqueue))
	return []cache.DoneChecker{own, here, movers, claims}, errors.Join(err0, err1, err2, err3, err4)
}

func (k *kindController[T]) index() error {
	return errors.Join(
		k.resources.Index(informers.ByNode, func(object T) []string { return k.transfers.Kind.Get(object).Nodes() }),
		k.resources.Index(informers.ByPod, func(object T) []string {
			if k.transfers.Kind.Get(object).Settled() {
				return nil
			}
			return k.pods(object)
		}),
	)
}

// pods returns the namespace/name of the pod whose volume a resource backs up or restores; none if it is of another kind.
func (k *kindController[T]) pods(object T) []string {
	source := k.transfers.Kind.MoverSpec(object, 0).Source.PodVolume
	if source == nil {
		return nil
	}
	return []string{source.Pod.Namespace + "/" + source.Pod.Name}
}

// addTermHandlers registers the handlers for the movers and claims that only a coordinator watches.
func (k *kindController[T]) addTermHandlers(caches *informers.Caches, term *informers.CoordinatorCaches) ([]cache.DoneChecker, error) {
	name := k.transfers.Kind.GVK.Kind
	ofMover := informers.EnqueueOwner[*corev1.Pod](name, k.enqueue)
	movers, err1 := term.Movers.AddHandler(caches.DropCreated(ofMover))
	claims, err2 := term.Claims.AddHandler(informers.EnqueueOwner[*corev1.PersistentVolumeClaim](name, k.enqueue))
	targets, err3 := term.Targets.AddHandler(k.enqueueOfPod)
	added, err := []cache.DoneChecker{movers, claims, targets}, errors.Join(err1, err2, err3)
	for _, pods := range term.VelerosMovers {
		foreign, err4 := pods.AddHandler(ofMover)
		added, err = append(added, foreign), errors.Join(err, err4)
	}
	return added, err
}

func (k *kindController[T]) resume() []string {
	owned := k.transfers.Owned(k.resources.List())
	k.transfers.Resume(owned)
	return keys(owned)
}

func (k *kindController[T]) run(ctx context.Context, first []string) { k.controller.Run(ctx, first) }
func (k *kindController[T]) ready() <-chan struct{}                  { return k.controller.Ready() }
func (k *kindController[T]) count() []metrics.Count                  { return k.transfers.Count(k.resources.List()) }

func (k *kindController[T]) settled() []string { return k.transfers.Settled(k.resources.List()) }

func (k *kindController[T]) labelDone(ctx context.Context, key string) error {
	return k.transfers.LabelDone(ctx, key)
}

func (k *kindController[T]) writeProgress(ctx context.Context, key string, reports reconcile.Reports, limiter flowcontrol.RateLimiter) (time.Duration, error) {
	return k.transfers.WriteProgress(ctx, key, reports, limiter)
}

func keys[T metav1.Object](objects []T) []string {
	all := make([]string, 0, len(objects))
	for _, object := range objects {
		all = append(all, informers.Key(object))
	}
	return all
}

// siblings returns the unfinished restores to other volumes of the same pod.
func (k *kindController[T]) siblings(object T) (found []T) {
	if !k.transfers.Kind.Restores {
		return nil
	}
	for _, pod := range k.pods(object) {
		for _, other := range k.resources.ByIndex(informers.ByPod, pod) {
			if k.transfers.SharePod(object, other) {
				found = append(found, other)
			}
		}
	}
	return found
}

// enqueueOfPod enqueues the backups of the volumes of a pod and the restores to them.
func (k *kindController[T]) enqueueOfPod(pod *corev1.Pod) {
	for _, object := range k.resources.ByIndex(informers.ByPod, informers.Key(pod)) {
		k.enqueue(informers.Key(object))
	}
}

// enqueueSiblings enqueues the restores that may wait for this one after it changed or was deleted.
func (k *kindController[T]) enqueueSiblings(object T) {
	for _, other := range k.siblings(object) {
		if k.transfers.AwaitsSibling(other) {
			k.enqueue(informers.Key(other))
		}
	}
}

// backupChanged updates the metrics that Velero itself has for PodVolumeBackups.
func (a *assembly) backupChanged(backup *velerov1.PodVolumeBackup, before, after transfer.State) {
	switch {
	case before.Phase.NeedsSlot() && after.Phase.IsMoving():
		a.Metrics.BackupStarted()
	case after.Phase.HasSucceeded():
		names := transfer.VeleroMetricNames(backup)
		a.Metrics.BackupCompleted(names.Operation, names.Backup, backup.Name, after.CompletedAt.Sub(after.StartedAt))
	}
}

// dataMoved updates the metrics that Velero itself has for DataUploads and DataDownloads.
func (a *assembly) dataMoved(kind string, after transfer.State) {
	if after.Phase.Terminal() {
		a.Metrics.DataMoved(kind, string(after.Phase))
	}
}
