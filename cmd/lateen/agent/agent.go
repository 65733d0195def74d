// Package agent assembles the node-agent from its parts and runs it. It reads no flags and decides
// nothing about transfers.
package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/build"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// stepGrace is for the steps in hand on SIGTERM. The process must be gone after 5 s.
const stepGrace = 4 * time.Second

// Options are what an agent is made of.
type Options struct {
	Config  config.Options
	Rest    *rest.Config // its limits are those of Config
	Metrics *metrics.Metrics
	Limits  transfer.Limits
	Clock   clock.WithTickerAndDelayedExecution
	Log     io.Writer // where the logs of movers go
	Server  *Server
}

// Run starts the agent and returns when the context has ended and the steps in hand are done. Movers go
// on. An error says why it could not start.
func Run(ctx context.Context, options Options) error {
	clients, err := newClients(options)
	if err != nil {
		return err
	}
	countFromZero(options.Metrics)
	startup, err := config.Load(ctx, clients.kube, options.Config, options.Clock)
	if ctx.Err() != nil {
		return nil // told to stop before it had begun
	}
	if err != nil {
		return err
	}
	caches, err := informers.NewCaches(clients.kube, clients.velero, selection(options.Config))
	if err != nil {
		return fmt.Errorf("prepare caches: %w", err)
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	recorder, flush := newRecorder(watching, clients.events, options.Config)
	defer flush()
	parts := parts{Options: options, clients: clients, startup: startup, caches: caches, recorder: recorder}
	return parts.run(watching)
}

// parts are what the assembly needs while it puts the agent together.
type parts struct {
	Options
	clients  *clients
	startup  *config.Startup
	caches   *informers.Caches
	recorder recorder
}

func selection(options config.Options) informers.Selection {
	return informers.Selection{
		Namespace:   options.Namespace,
		Node:        options.NodeName,
		MoverLabels: build.LabelAcceptor + "=" + build.LabelValue(options.NodeName),
	}
}

func (p *parts) run(ctx context.Context) error {
	movers := informers.NewMoverEvents(ctx, p.clients.kube, p.Config.Namespace, p.Clock)
	slots := reconcile.NewSlots(p.startup.Config.Concurrency)
	transfers := p.podVolumeBackups(slots, movers)
	controller := reconcile.NewController(reconcile.Options{
		Name: transfers.Kind.Name, Workers: p.Config.Workers, Grace: stepGrace, Clock: p.Clock, Metrics: p.Metrics.Workqueues(),
	}, transfers.Reconcile)
	transfers.Wake = controller.Wake

	handled, err := p.wire(controller.Wake)
	if err != nil {
		return err
	}
	running := make(chan struct{})
	go func() { p.caches.Run(ctx); close(running) }()
	if !cache.WaitFor(ctx, "caches", handled...) {
		<-running
		return nil
	}
	p.announce(ctx)
	p.observe(slots, transfers)
	first := transfers.Owned(p.caches.PodVolumeBackups.List())
	transfers.Resume(first)
	p.Server.ReadyWhen(controller.Ready())
	controller.Run(ctx, keys(first))
	<-running
	movers.Wait()
	return nil
}

// wire says which keys an object wakes, in one place.
func (p *parts) wire(wake func(key string)) ([]cache.DoneChecker, error) {
	backups, err := p.caches.PodVolumeBackups.Handle(func(backup *velerov1.PodVolumeBackup) {
		if backup.Spec.Node == p.Config.NodeName {
			wake(informers.Key(backup))
		}
	})
	here, err2 := p.caches.Here.Handle(informers.Controller[*corev1.Pod]("PodVolumeBackup", wake))
	movers, err3 := p.caches.Movers.Handle(informers.Controller[*corev1.Pod]("PodVolumeBackup", wake))
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, err
	}
	return []cache.DoneChecker{backups, here, movers}, nil
}

func (p *parts) podVolumeBackups(slots *reconcile.Slots, movers *informers.MoverEvents) *reconcile.Transfers[*velerov1.PodVolumeBackup] {
	live := p.clients.kube.CoreV1()
	return &reconcile.Transfers[*velerov1.PodVolumeBackup]{
		Kind:            transfer.PodVolumeBackup(),
		Node:            p.Config.NodeName,
		Limits:          p.Limits,
		ResourceTimeout: p.Config.ResourceTimeout,
		Privileged:      p.startup.Config.Movers.Privileged,
		Cached:          p.caches.PodVolumeBackups.Get,
		Client:          p.clients.velero.PodVolumeBackups(p.Config.Namespace),
		Pods:            p.caches,
		LivePod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return live.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Exposer:  p.exposer(),
		Paths:    exposer.HostPaths{Client: p.clients.kube, PodsDir: p.podsDir(), Mounted: p.Config.HostPath},
		Slots:    slots,
		Movers:   movers,
		Recorder: p.recorder,
		Metrics:  p.Metrics,
		Clock:    p.Clock,
		MoverLog: p.moverLog,
		Changed:  p.backupChanged,
		Gone:     func(backup *velerov1.PodVolumeBackup) { p.Metrics.BackupForgotten(backup.Name) },
	}
}

func (p *parts) exposer() *exposer.Exposer {
	return &exposer.Exposer{
		Client:   p.clients.kube,
		Template: p.startup.Templates[corev1.Linux],
		Settings: p.startup.Settings(),
		Rejected: p.rejected,
	}
}

func (p *parts) podsDir() string {
	if p.startup.HostPods != "" {
		return p.startup.HostPods
	}
	return build.DefaultPodsDir
}

// moverLog writes the log of a mover between two lines that say whose it is.
func (p *parts) moverLog(ctx context.Context, mover string, text []byte) {
	logger := klog.FromContext(ctx)
	logger.Info("Begin of mover log", "pod", mover)
	if _, err := p.Log.Write(text); err != nil {
		logger.Error(err, "Write mover log", "pod", mover)
	}
	logger.Info("End of mover log", "pod", mover)
}

func keys[T metav1.Object](objects []T) []string {
	all := make([]string, 0, len(objects))
	for _, object := range objects {
		all = append(all, informers.Key(object))
	}
	return all
}
