// Package agent assembles and runs the node-agent. It parses no flags and makes no decision about a transfer.
package agent

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/capacity"
	"github.com/lateen-project/lateen/reconcile/leader"
	"github.com/lateen-project/lateen/reconcile/orphans"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// Run starts the agent. It returns after the context has ended and the running reconciles have finished. Movers
// continue. An error states why the agent cannot start.
func Run(ctx context.Context, options Options) error {
	clients, err := newClients(options)
	if err != nil {
		return err
	}
	countFromZero(options.Metrics)
	startup, err := startup.Load(ctx, clients.kube, options.Flags, options.Clock)
	if ctx.Err() != nil {
		return nil // stopped before the start was complete
	}
	if err != nil {
		return err
	}
	caches, err := informers.NewCaches(clients.kube, clients.velero, options.Flags.Namespace, options.Flags.NodeName)
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
func (a *assembly) run(ctx context.Context) error {
	candidate, err := a.candidate()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	a.targets, a.restored = informers.NewTargets(ctx, a.clients.kube), informers.NewTargets(ctx, a.clients.kube)
	a.attached = informers.NewAttachments(ctx, a.clients.kube)
	var started sync.WaitGroup
	defer func() {
		stop()
		started.Wait()
		a.targets.Wait()
		a.restored.Wait()
		a.attached.Wait()
	}()
	var kinds kindSet
	a.snapshots = informers.NewSnapshots(a.clients.snapshots, a.clients.kube.Discovery(), func(namespace, name string) { a.enqueueUploads(kinds.uploads, namespace+"/"+name) },
		a.watchdog(func(failing string) { a.reportLacking(ctx, "snapshots", failing) }))
	a.class, a.own = &moverClass{assembly: a}, a.newOwnState()
	a.exposing, a.preparing, a.nodeSlots = a.exposer(), a.preparation(), capacity.NewNodeSlots(a.slots(a.startup.Config.Limits))
	a.config.Store(&a.startup.Config)
	shared := a.shared()
	kinds = a.kinds(shared)
	handled, err := a.addHandlers(kinds)
	if err != nil {
		return err
	}
	a.caches.Watch(a.watchdog(func(failing string) { a.reportLacking(ctx, "this agent", failing) }))
	started.Go(func() { a.caches.Run(ctx) })
	var own *corev1.Pod
	if synced(ctx, "caches", handled...) {
		own, err = a.labelOwnPod(ctx)
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
	a.reportConfig(ctx)
	a.observe(a.nodeSlots.On(a.Flags.NodeName), kinds.all)
	started.Go(func() { a.own.run(ctx, own) })
	started.Go(func() { a.follower().run(ctx) })
	started.Go(func() { a.class.run(ctx) })
	return a.runAll(ctx, candidate, kinds.all)
}

// runAll fills the slots before a worker can take one, then works until the context ends. It releases the Lease after
// the running reconciles. Otherwise, the next coordinator works concurrently with them.
func (a *assembly) runAll(ctx context.Context, candidate *leader.Coordinator, kinds []kind) error {
	first := make([][]string, len(kinds))
	for i, k := range kinds {
		first[i] = k.resume()
	}
	go a.awaitReady(ctx, kinds)
	var working sync.WaitGroup
	for i, k := range kinds {
		working.Go(func() { k.run(ctx, first[i]) })
	}
	campaign, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	ended := make(chan error, 1)
	go func() { ended <- a.coordinate(campaign, candidate, kinds) }()
	working.Wait()
	resign()
	return <-ended
}

// awaitReady turns /readyz to ok once every kind has reconciled its first keys.
func (a *assembly) awaitReady(ctx context.Context, kinds []kind) {
	for _, k := range kinds {
		select {
		case <-k.ready():
		case <-ctx.Done():
			return
		}
	}
	a.Server.ready.Store(true)
}

// addHandlers registers the event handlers that enqueue keys, all in one place.
func (a *assembly) addHandlers(kinds kindSet) ([]cache.DoneChecker, error) {
	var handled []cache.DoneChecker
	for _, k := range kinds.all {
		done, err := k.addHandlers(a.caches)
		if err != nil {
			return nil, err
		}
		handled = append(handled, done...)
	}
	return handled, nil
}

// enqueueUploads enqueues the DataUploads that read a VolumeSnapshot, and the DataUpload of its own name.
func (a *assembly) enqueueUploads(uploads kind, snapshot string) {
	uploads.enqueue(snapshot)
	for _, upload := range a.caches.DataUploads.ByIndex(informers.BySnapshot, snapshot) {
		uploads.enqueue(informers.Key(upload))
	}
}

// shared returns the dependencies that all kinds share.
func (a *assembly) shared() reconcile.Dependencies {
	live, effective := a.clients.kube.CoreV1(), a.startup.Config
	return reconcile.Dependencies{
		Agent:           transfer.Agent{Node: a.Flags.NodeName, Fleet: a.leadership},
		Limits:          a.Limits,
		ResourceTimeout: a.Flags.ResourceTimeout,
		NoConsumer:      effective.Movers.IgnoreDelayBinding,
		Pods:            a.caches,
		Stale:           a.caches.Stale,
		Claims:          a.caches,
		Targets:         a.targets,
		Restored:        a.restored,
		Attached:        a.attached,
		StorageClass:    a.caches.StorageClass,
		LivePod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			return live.Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		LiveEvents: func(ctx context.Context, about types.UID) (all []*corev1.Event, err error) {
			of := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(about)).String()}
			events, err := live.Events(a.Flags.Namespace).List(ctx, of)
			if err != nil {
				return nil, err //nolint:wrapcheck // the reconciler names the request
			}
			for i := range events.Items {
				all = append(all, &events.Items[i])
			}
			return all, nil
		},
		LearnSlots: a.learnSlots,
		Exposer:    a.exposing,
		NodeSlots:  a.nodeSlots,
		Preparing:  a.preparing,
		Recorder:   a.recorder,
		Metrics:    a.Metrics,
		Clock:      a.Clock,
		MoverLog:   a.moverLog,
	}
}

// preparation limits the transfers that are accepted.
func (a *assembly) preparation() *capacity.Preparation {
	limits := a.startup.Config.Limits
	preparation := a.pacing(limits)
	preparation.SetSlotsOf(a.Flags.NodeName, limits.Concurrency)
	preparation.SetLimits(transferLimits(limits))
	return preparation
}

func transferLimits(limits config.Limits) capacity.Limits {
	return capacity.Limits{Cluster: limits.Cluster, StorageClasses: limits.StorageClasses}
}

// pacing is without the limits of the cluster and of storage classes.
func (a *assembly) pacing(limits config.Limits) *capacity.Preparation {
	switch {
	case limits.PrepareQueueLength > 0:
		return capacity.NewQueue(limits.PrepareQueueLength, limits.MaxConcurrency)
	case a.Prepared > 0:
		return capacity.FixedPreparation(a.Prepared)
	default:
		return capacity.NewPreparation(limits.MaxConcurrency, a.Clock)
	}
}

// slots returns how many movers run at once on a node: on another one than this, if no rule matches it or learnSlots was not called.
func (a *assembly) slots(limits config.Limits) func(node string) int {
	return func(node string) int {
		if node == a.Flags.NodeName {
			return limits.Concurrency
		}
		return cmp.Or(a.preparing.SlotsOf(node), limits.GlobalConcurrency)
	}
}

// learnSlots finds out how many movers run at once on a node, if the configuration has rules for nodes.
func (a *assembly) learnSlots(ctx context.Context, name string) error {
	config := a.config.Load()
	if len(config.NodeRules) == 0 || a.preparing.KnowsSlotsOf(name) {
		return nil
	}
	node, err := a.clients.metadata.Resource(corev1.SchemeGroupVersion.WithResource("nodes")).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil // its mover ends soon
	case err != nil:
		return fmt.Errorf("get node %s for loadConcurrency.perNodeConfig: %w", name, err)
	}
	number := config.ConcurrencyOn(node.Labels)
	a.preparing.SetSlotsOf(name, number)
	a.nodeSlots.On(name).SetLimit(number)
	if edited := a.config.Load(); edited != config {
		a.preparing.SetSlotsOf(name, 0)
		a.nodeSlots.On(name).SetLimit(a.slots(edited.Limits)(name))
		return a.learnSlots(ctx, name)
	}
	return nil
}

func (a *assembly) exposer() *exposer.Exposer {
	exposing := &exposer.Exposer{
		Client:       a.clients.kube,
		Templates:    a.startup.Templates,
		Paths:        exposer.HostPaths{Client: a.clients.kube, PodsDir: a.startup.PodsDir, Mounted: a.Flags.HostPath, OS: a.startup.Node.OS},
		Snapshots:    a.snapshots,
		Source:       a.caches.Pod,
		StorageClass: a.caches.StorageClass,
		TargetFSType: a.clients.velero.TargetFSType,
		Refresh:      a.class.refresh,
		Rejected:     a.class.rejected,
		Created:      a.caches.Movers.Record,
		Clock:        a.Clock,
	}
	exposing.SetSettings(a.startup.Settings())
	return exposing
}

// moverLog writes the log of a mover between two log lines that name the mover.
func (a *assembly) moverLog(ctx context.Context, mover string, text []byte) {
	logger := klog.FromContext(ctx)
	logger.Info("Begin of mover log", "pod", mover)
	if _, err := a.Log.Write(text); err != nil {
		logger.Error(err, "Failed to write mover log", "pod", mover)
	}
	logger.Info("End of mover log", "pod", mover)
}

// Limits of the clients for Kubernetes Events and for the Lease: queries per second and burst. A storm of Events must not
// delay transfers.
const (
	eventsQPS   = 10
	eventsBurst = 50
)

type clients struct {
	kube   kubernetes.Interface
	velero *informers.Clientset
	events kubernetes.Interface
	lease  kubernetes.Interface

	metadata  metadata.Interface
	snapshots snapshotclient.SnapshotV1Interface
}

func newClients(options Options) (*clients, error) {
	base := rest.CopyConfig(options.Rest)
	base.QPS, base.Burst = options.Flags.KubeAPIQPS, options.Flags.KubeAPIBurst
	base.Wrap(func(next http.RoundTripper) http.RoundTripper { return options.Metrics.Transport(next, options.Clock) })
	base.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &connection{options.Server, next, options.Clock}
	})
	velero, err := informers.NewClientset(base)
	if err != nil {
		return nil, err
	}
	snapshots, err := snapshotclient.NewForConfig(base)
	if err != nil {
		return nil, fmt.Errorf("create client for snapshots: %w", err)
	}
	base.ContentType = runtime.ContentTypeProtobuf
	base.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	kube, err := kubernetes.NewForConfig(base)
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	slow := rest.CopyConfig(base)
	slow.QPS, slow.Burst = eventsQPS, eventsBurst
	events, err := kubernetes.NewForConfig(slow)
	if err != nil {
		return nil, fmt.Errorf("create client for Events: %w", err)
	}
	lease, err := kubernetes.NewForConfig(slow) // a separate client, so that nothing delays a renewal
	if err != nil {
		return nil, fmt.Errorf("create client for the Lease: %w", err)
	}
	objects, err := metadata.NewForConfig(base)
	if err != nil {
		return nil, fmt.Errorf("create client for metadata: %w", err)
	}
	return &clients{kube: kube, velero: velero, events: events, lease: lease, metadata: objects, snapshots: snapshots}, nil
}

// synced waits for caches to sync and reports whether they did. client-go logs one line per cache, two dozen at every
// start. They are demoted to --log-level=debug, where they show which cache does not sync.
func synced(ctx context.Context, what string, handled ...cache.DoneChecker) bool {
	return cache.WaitFor(klog.NewContext(ctx, klog.FromContext(ctx).V(2)), what, handled...)
}

// EventCaches is the reason of a Kubernetes Event on the agent's own pod: caches cannot sync, or cannot be updated any more.
const EventCaches = "CachesNotSynced"

// syncTimeout is how long the requests of caches fail before the agent reports that.
func (a *assembly) syncTimeout() time.Duration { return cmp.Or(a.SyncTimeout, 2*time.Minute) }

func (a *assembly) watchdog(report func(failing string)) informers.Watchdog {
	return informers.Watchdog{Clock: a.Clock, After: a.syncTimeout(), Report: report}
}

// reportLacking reports the failing requests that keep caches from the state of the cluster.
func (a *assembly) reportLacking(ctx context.Context, what, lacking string) {
	klog.FromContext(ctx).Error(nil, "Failed to sync caches", "of", what, "failing", lacking)
	a.recorder.Event(a.self(), corev1.EventTypeWarning, EventCaches,
		reconcile.EventMessage(fmt.Sprintf("Caches of %s cannot sync: %s. If that is forbidden, restore the RBAC rules of the agents' ServiceAccount with lateen install --apply", what, lacking)))
}
