package sim

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/transfer"
)

// process is one run of an agent on a node.
type process struct {
	name     string // node#number
	node     string
	pod      string // UID
	gate     *gate
	dead     atomic.Bool // it was killed: nothing of it gets through
	cut      bool        // it does not reach the API server
	leaving  bool        // another agent of its node has replaced it
	stopping bool        // it got SIGTERM; another pod replaces its pod once it has ended
	resigned bool        // it released the Lease after that
	cancel   context.CancelFunc
	ended    chan struct{}
	err      error // readable once ended is closed
	registry *prometheus.Registry

	lock   sync.Mutex
	queues map[string]*queue // by the name of the controller
	began  map[string]int    // reconciles as the coordinator, by controller and key
}

// start starts an agent as the command node-agent assembles it.
func (s *Simulation) start(node, pod string) *process {
	s.started++
	s.faults.since = time.Now() // it has to learn what happened before
	p := &process{name: fmt.Sprintf("%s#%d", node, s.started), node: node, pod: pod, gate: s.gate, ended: make(chan struct{}), registry: prometheus.NewRegistry(), queues: map[string]*queue{}, began: map[string]int{}}
	options := agent.Options{
		Flags: config.Options{
			Namespace: veleroNamespace, NodeName: node, PodUID: pod, NodeAgentConfigMap: configMapName, MoverTemplate: "daemonset",
			ResourceTimeout: 10 * time.Minute, Workers: workers, KubeAPIQPS: 100, KubeAPIBurst: 200, StartupTimeout: 30 * time.Second,
			AsVelero: s.plan.Adopted, MaintenanceConcurrency: s.plan.Maintenance, MaintenanceTimeout: s.plan.Timeout,
		},
		Rest:    &rest.Config{Host: "http://simulation", Transport: p},
		Metrics: metrics.New(p.registry, "simulation", node), Limits: transfer.DefaultLimits(), Clock: s.clock(node), Log: io.Discard,
		Server: &agent.Server{}, Process: fmt.Sprint(s.started), Queue: p.queue, Prepared: s.plan.prepared(),
	}
	const stall = 10 * time.Minute // a schedule is shorter than the default
	options.Limits.StallTimeout = stall
	logger := logr.Discard()
	if s.Log != nil {
		logger = s.Log.WithName(p.name)
	}
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(klog.NewContext(context.Background(), logger))
	go func() {
		defer close(p.ended)
		p.err = agent.Run(ctx, options)
	}()
	s.processes = append(s.processes, p)
	return p
}

// skewed is a clock that is wrong by a constant.
type skewed struct {
	clock.RealClock

	by time.Duration
}

// Now implements clock.PassiveClock, as Since does.
func (s skewed) Now() time.Time { return s.RealClock.Now().Add(s.by) }

// Since returns the time from t until now.
func (s skewed) Since(t time.Time) time.Duration { return s.Now().Sub(t) }

// clock returns the clock of a node.
func (s *Simulation) clock(node string) clock.WithTickerAndDelayedExecution {
	if index := slices.Index(s.nodes, node); index >= 0 && index < len(s.plan.Skew) {
		return skewed{by: s.plan.Skew[index]}
	}
	return clock.RealClock{}
}

// workers is how many resources of a kind an agent handles at once: more than a schedule has, so that the order of
// the queue decides nothing.
const workers = 8

// alive reports whether the process runs.
func (p *process) alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return !p.dead.Load()
	}
}

// reconciles returns the keys that the controllers of a process can reconcile next.
func (s *Simulation) reconciles(p *process) (all []choice) {
	p.lock.Lock()
	defer p.lock.Unlock()
	for _, name := range slices.Sorted(maps.Keys(p.queues)) {
		for _, key := range p.queues[name].ready() {
			all = append(all, choice{p.name + ": reconcile " + name + " " + key, often, func() {
				if s.coordinator() == p {
					p.began[name+" "+key]++
				}
				p.queues[name].grant(key)
			}})
		}
	}
	return all
}

// kill ends a process as SIGKILL does: none of its requests gets through from now on, and no answer.
func (s *Simulation) kill(p *process) {
	p.dead.Store(true)
	p.cancel()
	for _, waiting := range s.gate.waiting() {
		if waiting.from == p {
			s.gate.release(waiting, outcome{err: errKilled})
		}
	}
	for _, w := range s.watchesOf(p) {
		w.Close()
	}
}
