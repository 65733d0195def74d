// Package reconcile acts: it looks at one resource, asks for the decision and takes the one step that
// was decided. It decides nothing about the protocol itself.
package reconcile

import (
	"context"
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// Func brings the resource of one key one step further. An error means: again, with backoff, for
// ever. Again is when to look at the latest if no event comes first; 0 is never.
type Func func(ctx context.Context, key string) (requeue time.Duration, err error)

// The pauses before a key that failed is tried again.
const (
	firstRetry = 20 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Controller is the loop from key to step, written once for all kinds.
type Controller struct {
	name      string
	workers   int
	grace     time.Duration
	reconcile Func
	clock     clock.WithDelayedExecution
	queue     workqueue.TypedRateLimitingInterface[string]

	lock  sync.Mutex
	first map[string]bool // keys of the first list that were not tried yet
	ready chan struct{}   // closed when there are none
}

// Options are how a controller runs.
type Options struct {
	Name    string
	Workers int
	Grace   time.Duration // for the steps in hand when the context ends
	Clock   clock.WithTickerAndDelayedExecution
	Metrics workqueue.MetricsProvider
}

// NewController prepares a controller; it does nothing before Run.
func NewController(options Options, reconcile Func) *Controller {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)
	return &Controller{
		name:      options.Name,
		workers:   options.Workers,
		grace:     options.Grace,
		reconcile: reconcile,
		clock:     options.Clock,
		ready:     make(chan struct{}),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(limiter, workqueue.TypedRateLimitingQueueConfig[string]{
			Name: options.Name, Clock: options.Clock, MetricsProvider: options.Metrics,
		}),
	}
}

// Enqueue has the key looked at soon.
func (c *Controller) Enqueue(key string) { c.queue.Add(key) }

// Ready is closed once every key that there was at the start has been tried, whatever came of it.
func (c *Controller) Ready() <-chan struct{} { return c.ready }

// Run works until the context ends; then it finishes the steps in hand, for at most the grace, and
// returns. The caches must have synced; first are the keys that they hold.
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

// work takes one step for one key; false when the queue has been shut down.
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
		logger.Error(err, "Step failed, trying again", "failures", c.queue.NumRequeues(key))
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
