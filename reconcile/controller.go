// Package reconcile runs the reconcile loops. A reconcile observes one resource, gets the decision of package
// transfer and executes one step. The package decides nothing about the protocol itself.
package reconcile

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
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
	steps, cancel := context.WithCancel(context.WithoutCancel(ctx))
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
}

// work reconciles one key. It returns false after the queue was shut down.
func (c *Controller) work(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)
	defer c.tried(key)
	logger := klog.FromContext(ctx).WithValues("controller", c.name, "object", key)
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
