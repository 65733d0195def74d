package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

const (
	// starting is the number of agents that start at the same time.
	starting = 10
	// moverTakes is short enough that no mover reports progress: that would add a write for each report.
	moverTakes = 50 * time.Millisecond
)

// fleet is an installation in which few nodes work, or one, and all others have nothing to do. What the others receive is
// what an agent costs for what it does not own.
type fleet struct {
	*fixture.Env
	sources []*corev1.Pod // one of each node that works
	class   string        // of the claims into which is restored

	options func(*agent.Options) // applied to each agent; nil changes nothing

	lock    sync.Mutex
	whole   []*member
	hollow  int
	ctx     context.Context // of the agents
	stop    context.CancelFunc
	running sync.WaitGroup
}

// newFleet makes one without agents, of that many nodes that work.
func newFleet(ctx context.Context, plane *cluster.Cluster, dir string, nodes int) (*fleet, error) {
	name := "worker-" + rand.String(5) // nodes of ended fleets stay registered
	options := fixture.Options{Takes: moverTakes, Config: fmt.Sprintf(
		`{"loadConcurrency": {"globalConfig": %d}, "loadAffinity": [{"nodeSelector": {"matchLabels": {"scale": %q}}}]}`, slots, name)}
	options.NodeLabels = map[string]string{"scale": name}
	for i := range nodes {
		options.Nodes = append(options.Nodes, node.Options{Name: fmt.Sprintf("%s-%d", name, i)})
	}
	f := &fleet{}
	f.ctx, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	var err error
	f.Env, err = fixture.New(ctx, plane, dir, options)
	if err != nil {
		return f, err
	}
	f.Movers.Silent = true
	f.sources = make([]*corev1.Pod, nodes)
	err = fixture.InParallel(nodes, starting, func(i int) error {
		var err error
		f.sources[i], err = f.Source(ctx, fmt.Sprint("application-", i), f.Nodes[i])
		return err
	})
	if err != nil {
		return f, err
	}
	if err := testenv.InstallSnapshotCRDs(ctx, plane.Admin()); err != nil {
		return f, err // the driver watches snapshots, too
	}
	f.class = "disk-" + f.Namespace
	return f, f.StartDriver(ctx, f.class, csi.Options{DataLess: true})
}

// close ends all agents, then the installation.
func (f *fleet) close() error {
	f.stop()
	f.running.Wait()
	var errs []error
	for _, one := range f.whole {
		<-one.Ended()
		errs = append(errs, one.Err())
	}
	return errors.Join(append(errs, f.Close())...)
}

// grow starts whole agents until there are so many. The first is that of the node that works, and the coordinator.
func (f *fleet) grow(ctx context.Context, agents int) error {
	if len(f.whole) == 0 {
		if err := f.start(ctx, f.Nodes[0].Name()); err != nil {
			return err
		}
		if err := coordinated(ctx, f.Env); err != nil {
			return err
		}
	}
	return fixture.InParallel(agents-len(f.whole), starting, func(int) error {
		name, err := f.idleNode(ctx)
		if err != nil {
			return err
		}
		return f.start(ctx, name)
	})
}

// idleNode registers a node without a kubelet.
func (f *fleet) idleNode(ctx context.Context) (string, error) {
	created, err := f.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "idle-", Labels: map[string]string{corev1.LabelOSStable: string(corev1.Linux)}},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("register a node: %w", err)
	}
	return created.Name, nil
}

// start starts a whole agent.
func (f *fleet) start(ctx context.Context, name string) error {
	on := max(slices.IndexFunc(f.Nodes, func(n *node.Node) bool { return n.Name() == name }), 0)
	one, err := f.Agent(ctx, f.Nodes[on], io.Discard, func(options *agent.Options) {
		options.Flags.NodeName = name
		options.Metrics = metrics.New(prometheus.NewRegistry(), "scale", name)
		options.Election.Spread = 0 // that of a fleet
		if f.options != nil {
			f.options(options)
		}
	})
	if err != nil {
		return err
	}
	if one.Options.Rest, err = ownConnection(one.Options.Rest); err != nil {
		return err
	}
	started := &member{Agent: one, transport: one.Options.Rest.Transport}
	one.Options.Rest.Transport = started
	one.Run(f.ctx)
	f.lock.Lock()
	f.whole = append(f.whole, started)
	f.lock.Unlock()
	return nil
}

// addHollow starts hollow agents until there are so many: the caches of an agent on a connection of its own, and nothing
// that works on them. It waits until they are synced.
func (f *fleet) addHollow(ctx context.Context, agents int) error {
	return fixture.InParallel(agents-f.hollow, starting, func(int) error {
		one, err := f.Agent(ctx, f.Nodes[0], io.Discard)
		if err != nil {
			return err
		}
		if err := one.Options.Server.Close(); err != nil {
			return err
		}
		f.lock.Lock()
		f.hollow++
		one.Options.Flags.NodeName = fmt.Sprintf("hollow-%d", f.hollow)
		f.lock.Unlock()
		own, err := ownConnection(one.Options.Rest)
		if err != nil {
			return err
		}
		kube, err := kubernetes.NewForConfig(own)
		if err != nil {
			return fmt.Errorf("make client: %w", err)
		}
		velero, err := informers.NewClientset(own)
		if err != nil {
			return err
		}
		caches, err := informers.NewCaches(kube, velero, one.Options.Flags.Namespace, one.Options.Flags.NodeName)
		if err != nil {
			return err
		}
		f.running.Go(func() { caches.Run(f.ctx) })
		if !cache.WaitFor(ctx, "", caches.Synced()...) {
			return fmt.Errorf("sync the caches of a hollow agent: %w", context.Cause(ctx))
		}
		return nil
	})
}

// ownConnection returns a configuration whose clients share a connection with each other, and with nobody else: client-go
// shares one among all clients of a process.
func ownConnection(config *rest.Config) (*rest.Config, error) {
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	own := rest.CopyConfig(config)
	own.TLSClientConfig = rest.TLSClientConfig{}
	own.Transport = &http.Transport{TLSClientConfig: settings, ForceAttemptHTTP2: true}
	return own, nil
}

// work runs that many PodVolumeBackups, and as many DataDownloads, on the nodes that work, and waits until they are done.
func (f *fleet) work(ctx context.Context, transfers int) error {
	if err := f.create(ctx, transfers); err != nil {
		return err
	}
	return errors.Join(
		f.Transfers(testenv.PodVolumeBackup).WaitNone(ctx, api.SelectUndone), f.Transfers(testenv.DataDownload).WaitNone(ctx, api.SelectUndone),
	)
}

// create creates that many PodVolumeBackups and DataDownloads. A DataDownload has a claim of its own, and a pod that is scheduled.
func (f *fleet) create(ctx context.Context, transfers int) error {
	name := fmt.Sprintf("work-%d", time.Now().UnixNano())
	backup, err := f.Backup(ctx, name)
	if err != nil {
		return err
	}
	restore, err := f.Restore(ctx, name)
	if err != nil {
		return err
	}
	return fixture.InParallel(transfers, starting, func(i int) error {
		if _, err := f.PodVolumeBackup(ctx, backup, f.sources[i%len(f.sources)], "data"); err != nil {
			return err
		}
		target, err := f.TargetClaim(ctx, fmt.Sprintf("%s-%d", name, i), f.class)
		if err != nil {
			return err
		}
		_, err = f.DataDownload(ctx, restore, target, "snapshot")
		return err
	})
}

// counters are what the API server has counted since its start, by resource.group.
type counters struct {
	deliveries map[string]float64 // events sent to watchers
	bytes      map[string]float64 // of these
	watches    map[string]float64 // open now
	terminated float64            // watchers that did not keep up
	refused    float64            // requests answered with 429
	cpu        time.Duration
}

// scrape reads the counters.
func scrape(ctx context.Context, client kubernetes.Interface) (*counters, error) {
	text, err := client.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read metrics of the API server: %w", err)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(text)))
	if err != nil {
		return nil, fmt.Errorf("parse metrics of the API server: %w", err)
	}
	c := &counters{
		deliveries: sums(families["apiserver_watch_events_total"], resource),
		bytes:      sums(families["apiserver_watch_events_sizes"], resource),
		watches: sums(families["apiserver_longrunning_requests"], func(labels map[string]string) string {
			if labels["verb"] != "WATCH" {
				return ""
			}
			return resource(labels)
		}),
	}
	c.terminated = total(sums(families["apiserver_terminated_watchers_total"], anything))
	c.refused = total(sums(families["apiserver_request_total"], func(labels map[string]string) string {
		if labels["code"] == fmt.Sprint(http.StatusTooManyRequests) {
			return "refused"
		}
		return ""
	}))
	c.cpu = time.Duration(total(sums(families["process_cpu_seconds_total"], anything)) * float64(time.Second))
	return c, nil
}

func anything(map[string]string) string { return "all" }

// resource names the resource that a series is about. Some metrics have it with its group in one label.
func resource(labels map[string]string) string {
	if labels["group"] == "" {
		return labels["resource"]
	}
	return labels["resource"] + "." + labels["group"]
}

// sums adds the values of a family by a name; an empty one is left out. Of histograms, it adds the sums.
func sums(family *dto.MetricFamily, name func(labels map[string]string) string) map[string]float64 {
	all := map[string]float64{}
	for _, series := range family.GetMetric() {
		labels := map[string]string{}
		for _, label := range series.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		if by := name(labels); by != "" {
			all[by] += series.GetCounter().GetValue() + series.GetGauge().GetValue() + series.GetHistogram().GetSampleSum()
		}
	}
	return all
}

func total(values map[string]float64) (sum float64) {
	for _, value := range values {
		sum += value
	}
	return sum
}

// since returns what was counted since earlier. Gauges keep their value.
func (c *counters) since(earlier *counters) *counters {
	return &counters{
		deliveries: minus(c.deliveries, earlier.deliveries), bytes: minus(c.bytes, earlier.bytes),
		watches:    c.watches,
		terminated: c.terminated - earlier.terminated, refused: c.refused - earlier.refused, cpu: c.cpu - earlier.cpu,
	}
}

func minus(a, b map[string]float64) map[string]float64 {
	left := map[string]float64{}
	for name, value := range a {
		if value -= b[name]; value != 0 {
			left[name] = value
		}
	}
	return left
}
