// Package agent assembles and runs the node-agent. It parses no flags and makes no decision about a transfer.
package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/leader"
	"github.com/lateen-project/lateen/reconcile/orphans"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// admitTimeout is how long an admissible transfer may stay unaccepted before admission skips it.
const admitTimeout = time.Minute

// Run starts the agent. It returns after the context has ended and the running reconciles have finished. Movers
// continue. An error states why the agent cannot start.
func Run(ctx context.Context, options Options) error {
	clients, err := newClients(options)
	if err != nil {
		return err
	}
	countFromZero(options.Metrics)
	startup, err := config.Load(ctx, clients.kube, options.Flags, options.Clock)
	if ctx.Err() != nil {
		return nil // stopped before the start was complete
	}
	if err != nil {
		return err
	}
	caches, err := informers.NewCaches(clients.kube, clients.velero, Selectors(options.Flags))
	if err != nil {
		return fmt.Errorf("prepare caches: %w", err)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	recorder, flush := newRecorder(watching, clients.events, options.Flags)
	defer flush()
	parts := assembly{Options: options, clients: clients, startup: startup, caches: caches, recorder: recorder, leadership: &leadership{},
		coordination: options.Metrics.Coordination(orphans.Resources()...), maintenance: newMaintenanceMetrics(options)}
	return parts.run(watching)
}

// run builds the election, the shared dependencies, the kinds and their event handlers, then runs the control loops. It
// returns after all that it started has ended.
func (p *assembly) run(ctx context.Context) error {
	candidate, err := p.candidate()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	movers := informers.NewMoverEvents(ctx, p.clients.kube, p.Flags.Namespace, p.Clock)
	p.targets, p.targetPods, p.restored = informers.NewTargets(ctx, p.clients.kube), informers.NewTargetPods(ctx, p.clients.kube), informers.NewTargets(ctx, p.clients.kube)
	var started sync.WaitGroup
	defer func() {
		stop()
		started.Wait()
		movers.Wait()
		p.targets.Wait()
		p.targetPods.Wait()
		p.restored.Wait()
	}()
	var kinds kindSet
	p.snapshots = informers.NewSnapshots(p.clients.snapshots, p.clients.kube.Discovery(), func(namespace, name string) { p.enqueueUploads(kinds.uploads, namespace+"/"+name) })
	p.class = &moverClass{assembly: p}
	p.exposing, p.preparing = p.exposer(), p.preparation()
	shared := p.shared(movers)
	kinds = p.kinds(shared)
	handled, err := p.addHandlers(kinds)
	if err != nil {
		return err
	}
	started.Go(func() { p.caches.Run(ctx) })
	if synced(ctx, "caches", handled...) {
		err = p.labelOwnPod(ctx)
	}
	if ctx.Err() != nil {
		err = nil // stopped before the start was complete
	}
	if err != nil || ctx.Err() != nil {
		stop()
		for _, k := range kinds.all {
			k.run(ctx, nil) // only shuts its queue down
		}
		return err
	}
	p.reportConfig(ctx)
	p.observe(shared.NodeSlots.Own(), kinds.all)
	started.Go(func() { p.follower(shared).run(ctx) })
	return p.runAll(ctx, candidate, kinds.all)
}

// runAll fills the slots before a worker can take one, then works until the context ends. It releases the Lease after
// the running reconciles. Otherwise, the next coordinator works concurrently with them.
func (p *assembly) runAll(ctx context.Context, candidate *leader.Coordinator, kinds []kind) error {
	first := make([][]string, len(kinds))
	for i, k := range kinds {
		first[i] = k.resume()
	}
	p.Server.readyWhen(allReady(ctx, kinds))
	var working sync.WaitGroup
	for i, k := range kinds {
		working.Go(func() { k.run(ctx, first[i]) })
	}
	campaign, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	ended := make(chan error, 1)
	go func() { ended <- p.coordinate(campaign, candidate, kinds) }()
	working.Wait()
	resign()
	return <-ended
}

// allReady returns a channel that closes when every kind has reconciled its first keys.
func allReady(ctx context.Context, kinds []kind) <-chan struct{} {
	ready := make(chan struct{})
	go func() {
		for _, k := range kinds {
			select {
			case <-k.ready():
			case <-ctx.Done():
				return
			}
		}
		close(ready)
	}()
	return ready
}

// addHandlers registers the event handlers that enqueue keys, all in one place.
func (p *assembly) addHandlers(kinds kindSet) ([]cache.DoneChecker, error) {
	var handled []cache.DoneChecker
	for _, k := range kinds.all {
		done, err := k.addHandlers(p.caches)
		if err != nil {
			return nil, err
		}
		handled = append(handled, done...)
	}
	// a restore waits for the init container of its pod
	targets, err := p.caches.LocalPods.AddHandler(func(pod *corev1.Pod) {
		for _, restore := range p.caches.PodVolumeRestores.ByIndex(informers.ByPod, informers.Key(pod)) {
			kinds.restores.enqueue(informers.Key(restore))
		}
	})
	return append(handled, targets), err
}

// enqueueUploads enqueues the DataUploads that read a VolumeSnapshot, and the DataUpload of its own name.
func (p *assembly) enqueueUploads(uploads kind, snapshot string) {
	uploads.enqueue(snapshot)
	for _, upload := range p.caches.DataUploads.ByIndex(informers.BySnapshot, snapshot) {
		uploads.enqueue(informers.Key(upload))
	}
}

// shared returns the dependencies that all kinds share.
func (p *assembly) shared(movers *informers.MoverEvents) reconcile.Dependencies {
	live, effective := p.clients.kube.CoreV1(), p.startup.Config
	return reconcile.Dependencies{
		Agent:           transfer.Agent{Node: p.Flags.NodeName, Fleet: p.leadership},
		Limits:          p.Limits,
		ResourceTimeout: p.Flags.ResourceTimeout,
		NoConsumer:      effective.Movers.IgnoreDelayBinding,
		Pods:            p.caches,
		Claims:          p.caches,
		Targets:         p.targets,
		TargetPods:      p.targetPods,
		Restored:        p.restored,
		StorageClass:    p.caches.StorageClass,
		LivePod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return live.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Exposer:   p.exposing,
		NodeSlots: capacity.NewNodeSlots(p.Flags.NodeName, effective.Concurrency, effective.GlobalConcurrency),
		Preparing: p.preparing,
		Admission: capacity.NewAdmission(effective.PrepareQueueLength, effective.MaxConcurrency, admitTimeout, p.Clock),
		Movers:    movers,
		Recorder:  p.recorder,
		Metrics:   p.Metrics,
		Clock:     p.Clock,
		MoverLog:  p.moverLog,
	}
}

// preparation paces transfers unless prepareQueueLength limits them.
func (p *assembly) preparation() *capacity.Preparation {
	switch limits := p.startup.Config.Limits; {
	case p.Prepared > 0:
		return capacity.FixedPreparation(p.Prepared)
	case limits.PrepareQueueLength > 0:
		return capacity.Unpaced()
	default:
		return capacity.NewPreparation(limits.Concurrency, limits.MaxConcurrency)
	}
}

func (p *assembly) exposer() *exposer.Exposer {
	exposing := &exposer.Exposer{
		Client:       p.clients.kube,
		Templates:    p.startup.Templates,
		Paths:        exposer.HostPaths{Client: p.clients.kube, PodsDir: p.podsDir(), Mounted: p.Flags.HostPath, OS: p.startup.Node.OS},
		Snapshots:    p.snapshots,
		Source:       p.caches.Pod,
		StorageClass: p.caches.StorageClass,
		Refresh:      p.class.refresh,
		Rejected:     p.class.rejected,
		Created:      p.caches.Created,
	}
	exposing.SetSettings(p.startup.Settings())
	return exposing
}

func (p *assembly) podsDir() string {
	if p.startup.HostPods != "" {
		return p.startup.HostPods
	}
	return objects.DefaultPodsDir
}

// moverLog writes the log of a mover between two log lines that name the mover.
func (p *assembly) moverLog(ctx context.Context, mover string, text []byte) {
	logger := klog.FromContext(ctx)
	logger.Info("Begin of mover log", "pod", mover)
	if _, err := p.Log.Write(text); err != nil {
		logger.Error(err, "Failed to write mover log", "pod", mover)
	}
	logger.Info("End of mover log", "pod", mover)
}
