// Package reconcile runs the reconcile loops. A reconcile observes one resource, gets the decision of package
// transfer and executes one step. The package decides nothing about the protocol itself.
package reconcile

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Func reconciles the resource of one key by one step. After an error the controller requeues the key with backoff,
// without a limit on retries. A positive requeue is the delay until the next reconcile if no event comes first; 0
// schedules none.
type Func func(ctx context.Context, key string) (requeue time.Duration, err error)

// Minimum and maximum backoff of a key whose reconcile failed.
const (
	minBackoff = 20 * time.Millisecond
	maxBackoff = 30 * time.Second
)

// Controller runs the workers of one workqueue. All kinds use it.
type Controller struct {
	name      string
	workers   int
	grace     time.Duration
	reconcile Func
	clock     clock.WithDelayedExecution
	queue     workqueue.TypedRateLimitingInterface[string]

	lock  sync.Mutex
	first map[string]bool // keys of the first list that were not reconciled yet
	ready chan struct{}   // closed when first is empty
}

// Options configures a controller.
type Options struct {
	Name    string
	Workers int
	Grace   time.Duration // for running reconciles after the context ends
	Clock   clock.WithTickerAndDelayedExecution
	Metrics workqueue.MetricsProvider
	// Queue holds the keys; nil: client-go's queue, first in, first out. A simulation chooses which key is next.
	Queue workqueue.TypedInterface[string]
}

// NewController returns a controller that is idle until Run is called.
func NewController(options Options, reconcile Func) *Controller {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](minBackoff, maxBackoff)
	return &Controller{
		name:      options.Name,
		workers:   options.Workers,
		grace:     options.Grace,
		reconcile: reconcile,
		clock:     options.Clock,
		ready:     make(chan struct{}),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[string]{
			DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{
				Name: options.Name, Clock: options.Clock, MetricsProvider: options.Metrics, Queue: options.Queue,
			}),
		}),
	}
}

// Enqueue adds the key to the workqueue.
func (c *Controller) Enqueue(key string) { c.queue.Add(key) }

// Ready returns a channel that closes once every key passed to Run was reconciled, with or without an error.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// Run reconciles until the context ends. Then it waits for the running reconciles and cancels them after the grace.
// The caches must be synced; first lists the keys that they hold.
func (c *Controller) Run(ctx context.Context, first []string) {
	c.expect(first)
	logger := klog.FromContext(ctx).WithValues("controller", c.name)
	steps, cancel := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logger))
	defer cancel()
	var workers sync.WaitGroup
	for range c.workers {
		workers.Go(func() {
			for ctx.Err() == nil && c.work(steps) {
			}
		})
	}
	<-ctx.Done()
	c.queue.ShutDown()
	grace := c.clock.AfterFunc(c.grace, cancel)
	defer grace.Stop()
	workers.Wait()
	for key, shutdown := c.queue.Get(); !shutdown; key, shutdown = c.queue.Get() { // the depth of the queue is exported
		c.queue.Done(key)
	}
}

// work reconciles one key. It returns false after the queue was shut down.
func (c *Controller) work(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	defer c.tried(key)
	logger := klog.FromContext(ctx).WithValues("object", key)
	requeue, err := c.reconcile(klog.NewContext(ctx, logger), key)
	if err != nil {
		logger.Error(err, "Failed to reconcile", "failures", c.queue.NumRequeues(key))
		c.queue.AddRateLimited(key)
		return true
	}
	c.queue.Forget(key)
	if requeue > 0 {
		c.queue.AddAfter(key, requeue)
	}
	return true
}

func (c *Controller) expect(keys []string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.first = make(map[string]bool, len(keys))
	for _, key := range keys {
		c.first[key] = true
		c.queue.Add(key)
	}
	if len(keys) == 0 {
		close(c.ready)
	}
}

func (c *Controller) tried(key string) {
	c.lock.Lock()
	defer c.lock.Unlock()
	if !c.first[key] {
		return
	}
	delete(c.first, key)
	if len(c.first) == 0 {
		close(c.ready)
	}
}

// TransferReconciler reconciles the custom resources of one kind. All exported fields are required.
type TransferReconciler[T transfer.Object] struct {
	Kind transfer.Kind[T]
	Dependencies

	Cached   func(key string) (T, bool) // the newest version: the cached one, or that of Record
	Record   func(written T)            // records a write of this agent until the cache has it
	Client   Patcher[T]
	Enqueue  func(key string)
	OnUpdate func(object T, before, after transfer.State) // reports a phase change, for metrics that only this kind has
	// Siblings returns the unfinished restores to other volumes of the same pod.
	Siblings func(object T) []T

	local    localState
	counting sync.Mutex
	starting sync.Map // keys of the pods to which a restore is being written as InProgress
}

// Dependencies are shared by the reconcilers of all kinds of an agent. All fields are required.
type Dependencies struct {
	Agent           transfer.Agent
	Limits          transfer.Limits
	ResourceTimeout time.Duration                             // how long a mover may take to open its repository
	NoConsumer      bool                                      // a restore does not wait for its first consumer
	StorageClass    func(name string) *storagev1.StorageClass // cached on a coordinator; nil if it does not exist

	Pods       Pods
	Stale      func() bool // a cache of transfers may lack what other agents wrote
	Claims     Claims
	Targets    Targets
	Attached   Attachments
	Restored   Targets // the claims into which movers on this node restored, if another agent created them
	LivePod    func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	LiveEvents func(ctx context.Context, about types.UID) ([]*corev1.Event, error)
	LearnSlots func(ctx context.Context, node string) error // before a transfer of that node is accepted, or this agent starts a mover there
	Exposer    *exposer.Exposer
	NodeSlots  *capacity.NodeSlots
	Preparing  *capacity.Preparation
	Recorder   record.EventRecorder
	Metrics    *metrics.Metrics
	Clock      clock.PassiveClock
	MoverLog   func(ctx context.Context, mover string, text []byte)
}

// Patcher patches the custom resources of one kind in one namespace.
type Patcher[T any] interface {
	Patch(ctx context.Context, name string, pt types.PatchType, data []byte, opts metav1.PatchOptions, subresources ...string) (T, error)
}

// Pods reads the pod caches of an agent. It returns nil for a pod that is not cached.
type Pods interface {
	Mover(key string) *corev1.Pod // the mover pod of the custom resource with that key
	Recorded(key string) bool     // this agent created that pod, and no cache has had it yet
	Pod(key string) *corev1.Pod   // a pod on this node; on a coordinator also one that waits for a restore
}

// Claims reads the cache of the claims created for movers. It returns nil for a claim that is not cached.
type Claims interface {
	Claim(key string) *corev1.PersistentVolumeClaim
}

// Watches watches single objects, each for a resource. Watch starts to watch one; Forget stops.
type Watches interface {
	Watch(uid types.UID, object types.NamespacedName, enqueue func())
	Forget(uid types.UID)
}

// Attachments watches the VolumeAttachments of restored volumes.
type Attachments interface {
	Watches
	Detached(uid types.UID) (detached, watched bool)
}

// Targets reads single claims of restores.
type Targets interface {
	Watches
	Claim(uid types.UID) (claim *corev1.PersistentVolumeClaim, known bool)
}

// ConflictRequeue is the delay after a write was refused, or after the caches missed leftovers. An event usually
// comes first. A 409 does not prove that another client wrote, so the event may be missing.
const ConflictRequeue = time.Second

// unseenRequeue is the delay while no cache has the mover pod. If the pod ends before its watch is open again, no event reports that.
const unseenRequeue = time.Minute

// Reconcile executes one step for the resource with that key.
func (t *TransferReconciler[T]) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	object, exists := t.Cached(key)
	if !exists {
		t.forget(key)
		return 0, nil
	}
	if t.local.isRecreated(key, object.GetUID()) {
		t.forget(key)
	}
	t.local.identify(key, object.GetUID())
	s := t.newRequest(key, object)
	err := t.observe(ctx, s)
	t.reserve(s)
	if err != nil {
		return 0, err
	}
	if missing, err := t.assign(ctx, s); missing {
		return 0, err
	}
	t.reportObserved(ctx, s)
	requeue, err := t.execute(ctx, s, transfer.Next(s.state, s.observed, t.Limits))
	if errors.Is(err, errConflict) {
		klog.FromContext(ctx).V(4).Info("Another client changed the object; waiting for its event")
		return ConflictRequeue, nil
	}
	if s.cachesLag {
		return ConflictRequeue, err
	}
	if s.unseen && (s.requeueWithin == 0 || s.requeueWithin > unseenRequeue) {
		s.requeueWithin = unseenRequeue
	}
	if s.requeueWithin > 0 && (requeue == 0 || requeue > s.requeueWithin) {
		requeue = s.requeueWithin
	}
	return requeue, err
}

// execute runs the action of a step.
func (t *TransferReconciler[T]) execute(ctx context.Context, s *request[T], step transfer.Step) (time.Duration, error) {
	switch step.Action {
	case transfer.Write:
		return 0, t.write(ctx, s, step)
	case transfer.Expose:
		return step.After, t.expose(ctx, s)
	case transfer.Rebind:
		return step.After, t.rebind(ctx, s)
	case transfer.AbandonRebind:
		return 0, t.abandonRebind(ctx, s, "restored volume was not rebound in time")
	case transfer.DeleteMover:
		return step.After, t.deleteMover(ctx, s, step)
	case transfer.CleanUp:
		return t.cleanUp(ctx, s, step)
	case transfer.Wait:
	}
	return step.After, nil
}

// request is one resource as one reconcile observes it.
type request[T transfer.Object] struct {
	key           string
	object        T
	state         transfer.State
	spec          objects.MoverSpec
	pod           *corev1.Pod                     // the mover pod, or nil
	unseen        bool                            // no cache has that pod
	claims        []*corev1.PersistentVolumeClaim // claims created for it that only the API server returned
	target        *corev1.Pod                     // the pod to whose volume a new restore writes; nil if it does not exist
	targetKnown   bool
	requeueWithin time.Duration // when to observe it again at the latest; 0: as the step says
	cachesLag     bool          // only the API server has pod and claims: no event reports their deletion
	reservations  reservations
	observed      transfer.Observed
}

func (t *TransferReconciler[T]) newRequest(key string, object T) *request[T] {
	return &request[T]{key: key, object: object, state: t.Kind.Get(object), spec: t.moverSpec(object)}
}

// moverSpec returns the MoverSpec of a resource, with this agent as the exposing node.
func (t *TransferReconciler[T]) moverSpec(object T) objects.MoverSpec {
	spec := t.Kind.MoverSpec(object, t.ResourceTimeout)
	spec.GVK, spec.PodLabel = t.Kind.GVK, t.Kind.PodLabel
	spec.Attempt, spec.ExposingNode = t.Kind.Get(object).Restarts, t.Agent.Node
	return spec
}

// reservations is what reserve acquires for a transfer, as one reconcile observes it.
type reservations struct {
	slot      bool // a slot, because its mover is ready to start
	undecided bool // its watch has not shown yet whether it is eligible
	delayed   bool // no slot yet: another restore to its pod must end first
}
