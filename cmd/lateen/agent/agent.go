// Package agent assembles the node-agent from its parts and runs it. It reads no flags and decides
// nothing about transfers.
package agent

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/leader"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/reconcile/orphans"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// admitTimeout is how long a transfer that could be accepted keeps its place in line.
const admitTimeout = time.Minute

// stepGrace is for the steps in hand on SIGTERM. The process must be gone after 5 s.
const stepGrace = 4 * time.Second

// Options are what an agent is made of.
type Options struct {
	Flags   config.Options
	Rest    *rest.Config // its limits are those of Config
	Metrics *metrics.Metrics
	Limits  transfer.Limits
	Clock   clock.WithTickerAndDelayedExecution
	Log     io.Writer // where the logs of movers go
	Server  *Server

	Maintenance maintenance.Policy // its bounds; those of Config win, and zero is the defaults

	Election     leader.Options // its durations; those that are 0 have their defaults
	AgentTimeout time.Duration  // how long a node's agent may be gone before another one stands in; 0: 1 min

	SyncTimeout time.Duration // for what a coordinator watches to be listed, before it gives its Lease up; 0: 2 min

	AdmitTimeout time.Duration // with a transfer that could be accepted and is not, and keeps others from it; 0: 1 min
	OrphanAge    time.Duration // below which nothing is an orphan; 0: 10 min
	OrphanSweep  time.Duration // between two sweeps of a coordinator; 0: 10 min
}

// Run starts the agent and returns when the context has ended and the steps in hand are done. Movers go
// on. An error says why it could not start.
func Run(ctx context.Context, options Options) error {
	clients, err := newClients(options)
	if err != nil {
		return err
	}
	countFromZero(options.Metrics)
	startup, err := config.Load(ctx, clients.kube, options.Flags, options.Clock)
	if ctx.Err() != nil {
		return nil // told to stop before it had begun
	}
	if err != nil {
		return err
	}
	caches, err := informers.NewCaches(clients.kube, clients.velero, selection(options.Flags))
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

// assembly are what the assembly needs while it puts the agent together.
type assembly struct {
	Options
	clients    *clients
	startup    *config.Startup
	caches     *informers.Caches
	recorder   recorder
	leadership *leadership
	snapshots  *informers.Snapshots // watched by a coordinator only
	targets    *informers.Targets
	exposing   *exposer.Exposer

	coordination *metrics.Coordination
	maintenance  *metrics.Maintenance
}

func selection(options config.Options) informers.Selectors {
	return informers.Selectors{
		Namespace:   options.Namespace,
		Node:        options.NodeName,
		OwnedLabels: objects.LabelMover + "=true",
		MoverLabels: objects.LabelAcceptor + "=" + objects.LabelValue(options.NodeName),
		AgentLabels: roleLabel + "=" + roleNodeAgent,
	}
}

// run is the agent, from top to bottom: what it shares, its kinds, what wakes them, and the loops.
func (p *assembly) run(ctx context.Context) error {
	movers := informers.NewMoverEvents(ctx, p.clients.kube, p.Flags.Namespace, p.Clock)
	p.targets = informers.NewTargets(ctx, p.clients.kube)
	defer func() { movers.Wait(); p.targets.Wait() }()
	var kinds []kind
	p.snapshots = informers.NewSnapshots(p.clients.snapshots, p.clients.kube.Discovery(), func(namespace, name string) { p.enqueueUploads(kinds, namespace+"/"+name) })
	p.exposing = p.exposer()
	shared := p.shared(movers)
	kinds = p.kinds(shared)
	handled, err := p.addHandlers(kinds)
	if err != nil {
		return err
	}
	running := make(chan struct{})
	go func() { p.caches.Run(ctx); close(running) }()
	defer func() { <-running }()
	if !synced(ctx, "caches", handled...) {
		return nil
	}
	p.reportConfig(ctx)
	p.observe(shared.NodeSlots.Own(), kinds)
	return p.runAll(ctx, kinds)
}

// runAll fills the slots before any worker can take one, then works until the context ends. The Lease is given up
// after the steps in hand, or the next coordinator would work beside them.
func (p *assembly) runAll(ctx context.Context, kinds []kind) error {
	first := make([][]string, len(kinds))
	for i, k := range kinds {
		first[i] = k.resume()
	}
	p.Server.ReadyWhen(allReady(ctx, kinds))
	var working sync.WaitGroup
	for i, k := range kinds {
		working.Go(func() { k.run(ctx, first[i]) })
	}
	standing, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	ended := make(chan error, 1)
	go func() { ended <- p.coordinate(standing, kinds) }()
	working.Wait()
	resign()
	return <-ended
}

// allReady is closed when every kind has tried its first keys.
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

// addHandlers says which keys an object wakes, in one place.
func (p *assembly) addHandlers(kinds []kind) ([]cache.DoneChecker, error) {
	var handled []cache.DoneChecker
	for _, k := range kinds {
		done, err := k.addHandlers(p.caches)
		if err != nil {
			return nil, err
		}
		handled = append(handled, done...)
	}
	restores := kinds[1]
	targets, err := p.caches.LocalPods.AddHandler(func(pod *corev1.Pod) { // a restore waits for its pod's init container
		for _, restore := range p.caches.PodVolumeRestores.ByIndex(informers.ByPod, informers.Key(pod)) {
			restores.enqueue(informers.Key(restore))
		}
	})
	return append(handled, targets), err
}

// enqueueUploads wakes whoever reads a VolumeSnapshot, or has one of its own of that name.
func (p *assembly) enqueueUploads(kinds []kind, snapshot string) {
	uploads := kinds[2]
	uploads.enqueue(snapshot)
	for _, upload := range p.caches.DataUploads.ByIndex(informers.BySnapshot, snapshot) {
		uploads.enqueue(informers.Key(upload))
	}
}

// shared is what all kinds have in common.
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
		StorageClass:    p.caches.StorageClass,
		LivePod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return live.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Exposer:   p.exposing,
		NodeSlots: capacity.NewNodeSlots(p.Flags.NodeName, effective.Concurrency, effective.GlobalConcurrency),
		Admission: capacity.NewAdmission(effective.PrepareQueueLength, effective.MaxConcurrency, cmp.Or(p.AdmitTimeout, admitTimeout), p.Clock),
		Movers:    movers,
		Recorder:  p.recorder,
		Metrics:   p.Metrics,
		Clock:     p.Clock,
		MoverLog:  p.moverLog,
	}
}

func (p *assembly) exposer() *exposer.Exposer {
	return &exposer.Exposer{
		Client:       p.clients.kube,
		Templates:    p.startup.Templates,
		Settings:     p.startup.Settings(),
		Paths:        exposer.HostPaths{Client: p.clients.kube, PodsDir: p.podsDir(), Mounted: p.Flags.HostPath, OS: p.startup.Node.OS},
		Snapshots:    p.snapshots,
		Source:       p.caches.Pod,
		StorageClass: p.caches.StorageClass,
		Rejected:     p.rejected,
		Created:      p.caches.Created,
	}
}

func (p *assembly) podsDir() string {
	if p.startup.HostPods != "" {
		return p.startup.HostPods
	}
	return objects.DefaultPodsDir
}

// moverLog writes the log of a mover between two lines that say whose it is.
func (p *assembly) moverLog(ctx context.Context, mover string, text []byte) {
	logger := klog.FromContext(ctx)
	logger.Info("Begin of mover log", "pod", mover)
	if _, err := p.Log.Write(text); err != nil {
		logger.Error(err, "Write mover log", "pod", mover)
	}
	logger.Info("End of mover log", "pod", mover)
}
