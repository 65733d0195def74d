// Package sim plays whole agents in virtual time against an API server in memory. A seed decides everything that a
// real cluster leaves to chance: which event reaches which cache next, which request is answered or lost, when an
// agent dies. One scheduler makes one choice at a time, and after each choice the promises of Lateen are checked.
//
// The same seed leads to the same choices: all requests and reconciles of the agents pass a gate, the actors act only
// when they are chosen, and time passes only when the scheduler sleeps (testing/synctest).
package sim

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/sim/apiserver"
	"github.com/lateen-project/lateen/test/sim/controllers"
)

// Simulation is one schedule. All its methods run in one goroutine, within one bubble of synctest.
type Simulation struct {
	*controllers.Cluster

	plan        Plan
	random      *rand.Rand
	gate        *gate
	trace       *trace
	nodes       []string
	processes   []*process
	started     int // processes so far
	step        int
	begin       time.Time
	work        []*job
	movers      map[types.UID]*mover
	storage     *storage
	faults      *faults
	promises    *promises
	hindered    time.Time           // when no agent could act, most recently
	maintenance map[string]*jobRuns // by repository
	records     []cluster.Record    // of all agents
	lag         lag
}

// choice is something that can happen now.
type choice struct {
	name   string
	weight int
	do     func()
}

// Weights of choices. Requests, events and actors are the usual work.
const (
	often  = 40
	seldom = 2
)

// limits of a schedule. A schedule that reaches one has not ended.
const (
	maxSteps = 30_000
	maxTime  = 72 * time.Hour
)

// newSimulation prepares a schedule.
func newSimulation(plan Plan) *Simulation {
	names := rand.New(rand.NewPCG(plan.Seed, nameStream))
	const digits = 5
	s := &Simulation{
		plan: plan, random: rand.New(rand.NewPCG(plan.Seed, choiceStream)), gate: &gate{arrived: make(chan struct{}, 1)}, trace: &trace{}, begin: time.Now(),
		storage: &storage{volumes: map[string]string{}, snapshots: map[string]string{}, uploaded: map[types.UID]string{}, restored: map[types.UID]bool{}},
		movers:  map[types.UID]*mover{}, maintenance: map[string]*jobRuns{}, lag: lag{watches: map[*apiserver.Watch]stalled{}},
	}
	s.Cluster = &controllers.Cluster{Provision: s.provisioning, Reclaim: s.reclaiming}
	s.Pick = func(nodes []string) string { return nodes[s.random.IntN(len(nodes))] }
	s.API = apiserver.New(time.Now, func() string {
		const letters = "bcdfghjklmnpqrstvwxz2456789"
		name := make([]byte, digits)
		for i := range name {
			name[i] = letters[names.IntN(len(letters))]
		}
		return string(name)
	}, func() types.UID {
		return types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", names.Uint32(), names.Uint64()&(1<<48-1)))
	})
	s.API.Streams = !plan.Lists
	s.faults = &faults{due: slices.Clone(plan.Faults), silent: map[string]bool{}, hung: map[types.UID]bool{}, deleted: map[types.UID]bool{}, unprotected: map[types.UID]bool{}, slots: plan.Slots, overlaps: map[string]int{}}
	s.promises = &promises{deletions: map[string]bool{}}
	return s
}

// run plays the schedule to its end and returns what was broken, or nil.
func (s *Simulation) run() (broken error) {
	defer s.stop()
	s.furnish()
	for _, node := range s.nodes {
		s.deploy(node)
	}
	for s.step = 1; ; s.step++ {
		<-time.After(time.Microsecond) // no two choices have the same time: client-go names Events by it
		synctest.Wait()
		s.tidy()
		s.strike()
		synctest.Wait()
		if err := s.check(); err != nil {
			return fmt.Errorf("step %d: %w", s.step, err)
		}
		if s.done() {
			return s.checkEnd()
		}
		if s.step > maxSteps || time.Since(s.begin) > maxTime {
			return fmt.Errorf("step %d, after %s: not every transfer has ended: %s", s.step, time.Since(s.begin).Round(time.Second), s.unsettled())
		}
		s.choose()
	}
}

// choose makes one choice.
func (s *Simulation) choose() {
	choices := s.choices()
	total := 0
	for _, one := range choices {
		total += one.weight
	}
	if total == 0 || !s.plan.Hurry && s.random.IntN(often) == 0 {
		s.sleep(total == 0)
		return
	}
	at := s.random.IntN(total)
	for _, one := range choices {
		if at -= one.weight; at < 0 {
			s.trace.add(s.step, time.Since(s.begin), one.name)
			one.do()
			return
		}
	}
}

// sleep lets time pass until an agent does something, at most for a while if something else could happen.
func (s *Simulation) sleep(idle bool) {
	most := time.Duration(1+s.random.IntN(5_000)) * time.Millisecond
	if idle { // what is down for minutes comes back in time
		if most = 10 * time.Minute; time.Now().Before(s.faults.lasts) {
			most = min(most, time.Until(s.faults.lasts))
		}
		if until, late := s.isLate(); late {
			most = min(most, max(time.Until(until), time.Millisecond))
		}
	}
	select { // something that was parked before may have left a mark
	case <-s.gate.arrived:
	default:
	}
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-s.gate.arrived:
	case <-timer.C:
	}
	s.trace.add(s.step, time.Since(s.begin), "time passes")
}

// choices returns everything that can happen now, in an order that only the seed decides.
func (s *Simulation) choices() []choice {
	all := append(s.requests(), s.late()...)
	for _, p := range s.processes {
		if p.alive() {
			all = append(all, s.reconciles(p)...)
		}
	}
	all = append(all, s.deliveries()...)
	all = append(all, controlled(s.Scheduler())...)
	all = append(all, s.kubelets()...)
	all = append(all, s.detaching()...)
	all = append(all, s.moving()...)
	if !time.Now().Before(s.lag.volumes) {
		all = append(all, controlled(s.Volumes())...)
		all = append(all, s.snapshotting()...)
	}
	all = append(all, s.collecting()...)
	all = append(all, s.server()...)
	all = append(all, s.veleros()...)
	all = append(all, controlled(s.Jobs())...)
	all = append(all, s.recalling()...)
	all = append(all, s.housekeeping()...)
	all = append(all, s.emptying()...)
	all = append(all, s.stray()...)
	all = append(all, s.evicting()...)
	return append(all, s.healing()...)
}

// controlled returns the steps of controllers as choices.
func controlled(steps []controllers.Step) (all []choice) {
	for _, step := range steps {
		all = append(all, choice{step.Name, often, step.Do})
	}
	return all
}

// requests returns the requests that can be answered.
func (s *Simulation) requests() (all []choice) {
	for _, p := range s.gate.waiting() {
		if p.from.cut {
			all = append(all, choice{p.from.name + ": cut: " + p.name, often, func() { s.gate.release(p, unreached(p)) }})
			continue
		}
		all = append(all, choice{p.from.name + ": " + p.name, often, func() { s.answer(p) }})
	}
	return all
}

// unreached returns the outcome of a request that does not reach the API server. client-go sends an Event without an answer
// again after a random delay that no seed reaches.
func unreached(p *parked) outcome {
	if p.request.Method != http.MethodGet && strings.Contains(p.request.Path, "/events") {
		return outcome{response: apiserver.Failure(apierrors.NewServiceUnavailable("cut off")).Response(p.http)}
	}
	return outcome{err: errCut}
}

// answer answers a request, unless a fault hits it.
func (s *Simulation) answer(p *parked) {
	if end, is := s.refused(p); is {
		s.gate.release(p, end)
		return
	}
	if end, hit := s.faults.hit(s, p); hit {
		s.gate.release(p, end)
		return
	}
	reply := s.handle(p)
	s.promises.answered(p, reply)
	s.gate.release(p, outcome{response: reply.Response(p.http)})
}

// deliveries returns the events that caches can get.
func (s *Simulation) deliveries() (all []choice) {
	for _, w := range s.API.Watches() {
		if next := w.Next(); next != "" && !s.isCut(w.Client) && !s.stalled(w) {
			all = append(all, choice{w.Client + ": hears " + next + " (" + w.Name + ")", often, w.Deliver})
		}
	}
	return all
}

func (s *Simulation) isCut(client string) bool {
	for _, p := range s.processes {
		if p.name == client {
			return p.cut
		}
	}
	return false
}

func (s *Simulation) watchesOf(p *process) (all []*apiserver.Watch) {
	for _, w := range s.API.Watches() {
		if w.Client == p.name {
			all = append(all, w)
		}
	}
	return all
}

// tidy closes watches whose clients have gone.
func (s *Simulation) tidy() {
	var gone []*apiserver.Watch
	for _, w := range s.API.Watches() {
		if w.Abandoned() {
			gone = append(gone, w)
		}
	}
	for _, w := range gone {
		w.Close()
	}
}

// stop ends all agents.
func (s *Simulation) stop() {
	for _, p := range s.processes {
		s.kill(p)
	}
	for _, p := range s.processes {
		<-p.ended
	}
}
