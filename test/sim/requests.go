package sim

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/transfer"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// hit lets the next fault of requests hit this one.
func (f *faults) hit(s *Simulation, p *parked) (outcome, bool) {
	if len(f.requests) == 0 || strings.HasSuffix(p.request.Path, "/events") || strings.Contains(p.request.Path, "/events/") {
		return outcome{}, false
	}
	fault := f.requests[0]
	changes := p.request.Method != http.MethodGet && p.request.Query.Get("dryRun") == "" && !strings.Contains(p.request.Path, "/leases") // a transfer or a repository
	if fault.What == refusePod && (p.request.Method != http.MethodPost || !strings.HasSuffix(p.request.Path, "/pods")) || fault.What == delayRequest && !changes {
		return outcome{}, false
	}
	f.requests = f.requests[1:]
	s.trace.note("      ! " + fault.What)
	resource := schema.GroupResource{Resource: "simulated"}
	fail := func(err error) (outcome, bool) {
		return outcome{response: apiserver.Failure(err).Response(p.http)}, true
	}
	switch fault.What {
	case loseRequest:
		return outcome{err: errLost}, true
	case delayRequest:
		s.delay(p, fault.Pick)
		return outcome{err: errLost}, true
	case loseAnswer:
		if reply := s.handle(p); reply.Watch != nil {
			reply.Watch.Close()
		}
		return outcome{err: errLost}, true
	case conflict:
		return fail(apierrors.NewConflict(resource, "simulated", errLost))
	case tooMany:
		return fail(apierrors.NewTooManyRequests("simulated", 1))
	case unavailable:
		return fail(apierrors.NewServiceUnavailable("simulated"))
	case refusePod:
		return fail(apierrors.NewForbidden(resource, "simulated", errQuota))
	default:
		return fail(apierrors.NewInternalError(errLost))
	}
}

// handle lets the API server handle a request.
func (s *Simulation) handle(p *parked) apiserver.Reply {
	if p.request.Method == http.MethodDelete && strings.Contains(p.request.Path, "/jobs/") {
		if object := s.API.Get("jobs", veleroNamespace, path.Base(p.request.Path)); object != nil && s.faults.refused.Resource != "jobs/status" {
			s.promises.jobDeleted(p.from.name, object)
		}
	}
	finalized := s.finalized(p)
	reply := s.API.Handle(p.request)
	s.promises.request(p, reply)
	record := p.request.Record()
	record.User, record.Code = "system:serviceaccount:"+veleroNamespace+":"+deploy.ServiceAccountName, reply.Code
	s.records = append(s.records, record)
	s.checkWrite(p, reply, finalized)
	if reply.Code >= 300 {
		s.trace.note(fmt.Sprintf("  → %d", reply.Code))
	}
	return reply
}

// process is one run of an agent on a node.
type process struct {
	name     string // node#number
	node     string
	pod      string // UID
	gate     *gate
	dead     atomic.Bool // it was killed: nothing of it gets through
	cut      bool        // it does not reach the API server
	lost     int         // its writes to transfers that got no answer
	unready  bool        // its probe fails
	leaving  bool        // another agent of its node has replaced it
	stopping bool        // it got SIGTERM; another pod replaces its pod once it has ended
	resigned bool        // it released the Lease after that
	cancel   context.CancelFunc
	ended    chan struct{}
	err      error // readable once ended is closed
	registry *prometheus.Registry
	server   *agent.Server

	lock   sync.Mutex
	queues map[string]*queue // by the name of the controller
	began  map[string]int    // reconciles as the coordinator, by controller and key
}

// start starts an agent as the command node-agent assembles it.
func (s *Simulation) start(node, pod string) *process {
	s.started++
	s.faults.since = time.Now() // it has to learn what happened before
	p := &process{name: fmt.Sprintf("%s#%d", node, s.started), node: node, pod: pod, gate: s.gate, ended: make(chan struct{}), registry: prometheus.NewRegistry(), server: &agent.Server{}, queues: map[string]*queue{}, began: map[string]int{}}
	options := agent.Options{
		Flags: startup.Options{
			Namespace: veleroNamespace, NodeName: node, PodUID: pod, NodeAgentConfigMap: configMapName, MoverTemplate: "daemonset",
			ResourceTimeout: 10 * time.Minute, Workers: workers, KubeAPIQPS: 100, KubeAPIBurst: 200, StartupTimeout: 30 * time.Second,
			AsVelero: s.plan.Adopted, MaintenanceConcurrency: s.plan.Maintenance, MaintenanceTimeout: s.plan.Timeout,
		},
		Rest:    &rest.Config{Host: "http://simulation", Transport: p},
		Metrics: metrics.New(p.registry, "simulation", node), Limits: transfer.DefaultLimits(), Clock: s.clock(node), Log: io.Discard,
		Server: p.server, Process: fmt.Sprint(s.started), Queue: p.queue, Prepared: s.plan.prepared(),
	}
	options.Limits.StallTimeout = 10 * time.Minute // a schedule is shorter than the default
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(klog.NewContext(context.Background(), logr.Discard()))
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
				if s.coordinator() == p && p.queues["progress"] != nil { // a queue of its term: it has all caches
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

// checkMetrics checks that no terminal transfer was counted twice. An agent that dies may not have counted one. An agent
// whose write has no answer counts it once the transfer shows its result, though another agent of its node may have written it.
func (s *Simulation) checkMetrics(ended int) error {
	counted, maintained, both := 0, 0, 0
	for _, p := range s.processes {
		if s.faults.overlaps[p.node] > 0 {
			both += p.lost
		}
		counted += p.sum("lateen_transfers_finished_total")
		maintained += p.sum("velero_repo_maintenance_success_total", "velero_repo_maintenance_failure_total")
	}
	calm := !slices.Contains(s.faults.met, killAgent) && !slices.Contains(s.faults.met, loseAnswer) && !slices.Contains(s.faults.met, cutAgent) && !slices.Contains(s.faults.met, killCoordinator) && !slices.Contains(s.faults.met, killAgents) && !slices.Contains(s.faults.met, cutCoordinator) && !slices.Contains(s.faults.met, delayRequest) && !slices.Contains(s.faults.met, deleteIt)
	switch {
	case calm && counted != ended:
		return fmt.Errorf("%d transfers have ended and agents counted %d", ended, counted)
	case counted > len(s.work)+both:
		return fmt.Errorf("agents counted %d of %d transfers", counted, len(s.work))
	case maintained > s.jobs() && !s.faults.uncounted:
		return fmt.Errorf("agents counted %d runs of %d maintenance jobs", maintained, s.jobs())
	}
	return nil
}

// checkMemory checks that no agent holds anything for a transfer that has ended, once it knows all that has happened.
// What is left of goroutines makes the end of the bubble fail.
func (s *Simulation) checkMemory() error {
	s.quiesce()
	empty := []string{"lateen_slots_in_use", "lateen_unattended_transfers", "lateen_mover_max_silence_seconds", "lateen_transfer_oldest_age_seconds"}
	if len(s.API.List("jobs")) == 0 {
		empty = append(empty, "lateen_maintenance_running")
	}
	if len(s.API.List("backuprepositories")) == 0 {
		empty = append(empty, "lateen_maintenance_due")
	}
	for _, p := range s.processes {
		if !p.alive() || p.cut {
			continue
		}
		for _, name := range empty {
			if sum := p.sum(name); sum != 0 {
				return fmt.Errorf("%s of %s is %d after every transfer has ended", name, p.name, sum)
			}
		}
	}
	return nil
}

// sum returns the sum of all series of metrics, rounded up.
func (p *process) sum(names ...string) int {
	families, err := p.registry.Gather()
	if err != nil {
		panic(fmt.Sprintf("gather metrics of %s: %v", p.name, err))
	}
	total := 0.0
	for _, family := range families {
		if slices.Contains(names, family.GetName()) {
			for _, series := range family.GetMetric() {
				total += series.GetCounter().GetValue() + series.GetGauge().GetValue()
			}
		}
	}
	return int(math.Ceil(total))
}

// quiesce lets agents observe what has happened: watches that broke are opened again after a while.
func (s *Simulation) quiesce() {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		<-time.After(time.Microsecond)
		synctest.Wait()
		s.tidy()
		all := append(append(s.requests(), s.late()...), s.deliveries()...)
		for _, p := range s.processes {
			if p.alive() {
				all = append(all, s.reconciles(p)...)
			}
		}
		if len(all) == 0 {
			s.sleep(true)
			continue
		}
		one := all[s.random.IntN(len(all))]
		s.step++
		s.trace.add(s.step, time.Since(s.begin), one.name)
		one.do()
	}
}

// trace records the choices of a schedule.
type trace struct{ lines []string }

func (t *trace) add(step int, at time.Duration, text string) {
	t.note(fmt.Sprintf("%5d %10s %s", step, at.Round(time.Millisecond), text))
}

func (t *trace) note(line string) { t.lines = append(t.lines, line) }

// String returns the trace for people.
func (t *trace) String() string { return strings.Join(t.lines, "\n") }
