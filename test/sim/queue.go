package sim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/rights"
	"github.com/lateen-project/lateen/test/sim/apiserver"
	"github.com/lateen-project/lateen/test/sim/controllers"
)

// queue is the queue of a controller. The scheduler chooses which key is next. A queue that is first in, first out
// depends on the order of goroutines: when several add a key at once, and when a worker is faster than one of them.
type queue struct {
	workqueue.TypedInterface[string] // nil: nothing calls its other methods

	name    string
	gate    *gate
	lock    sync.Mutex
	changed *sync.Cond
	waiting map[string]bool
	granted []string
	idle    int // workers that wait for a key
	working map[string]bool
	closed  bool
}

// queue makes the queue of a controller.
func (p *process) queue(name string) workqueue.TypedInterface[string] {
	q := &queue{name: name, gate: p.gate, waiting: map[string]bool{}, working: map[string]bool{}}
	q.changed = sync.NewCond(&q.lock)
	p.lock.Lock()
	defer p.lock.Unlock()
	p.queues[name] = q // a later term of a coordinator makes another one
	return q
}

// ready returns the keys that a worker can have now, in order. A key that is granted before there is a worker would be
// worked on together with others, once there are workers.
func (q *queue) ready() (keys []string) {
	q.lock.Lock()
	defer q.lock.Unlock()
	if q.idle <= len(q.granted) {
		return nil
	}
	for key := range maps.Keys(q.waiting) {
		if !q.working[key] && !slices.Contains(q.granted, key) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// grant gives a key to the next worker.
func (q *queue) grant(key string) {
	q.lock.Lock()
	defer q.lock.Unlock()
	delete(q.waiting, key)
	q.granted = append(q.granted, key)
	q.changed.Broadcast()
}

// Add implements workqueue.TypedInterface, as the methods below.
func (q *queue) Add(key string) {
	q.lock.Lock()
	defer q.lock.Unlock()
	if !q.closed && !slices.Contains(q.granted, key) {
		q.waiting[key] = true
		q.gate.signal()
	}
}

// Get waits for a key.
func (q *queue) Get() (key string, shutdown bool) {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.idle++
	q.gate.signal()
	for len(q.granted) == 0 && !q.closed {
		q.changed.Wait()
	}
	q.idle--
	if len(q.granted) == 0 {
		return "", true
	}
	key, q.granted = q.granted[0], q.granted[1:]
	q.working[key] = true
	return key, false
}

// Done ends the work on a key.
func (q *queue) Done(key string) {
	q.lock.Lock()
	defer q.lock.Unlock()
	delete(q.working, key)
	q.gate.signal()
}

// ShutDown lets Get return.
func (q *queue) ShutDown() {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.closed = true
	q.changed.Broadcast()
}

// ShuttingDown reports whether the queue was shut down.
func (q *queue) ShuttingDown() bool {
	q.lock.Lock()
	defer q.lock.Unlock()
	return q.closed
}

// furnishRepositories creates the repositories, which are due at once.
func (s *Simulation) furnishRepositories() {
	for number := range s.plan.Repositories {
		namespace := fmt.Sprintf("app-%d", number)
		s.Create("backuprepositories", veleroNamespace, &velerov1.BackupRepository{
			ObjectMeta: metav1.ObjectMeta{Name: namespace + "-default-kopia"},
			Spec: velerov1.BackupRepositorySpec{
				VolumeNamespace: namespace, BackupStorageLocation: "default", RepositoryType: "kopia", MaintenanceFrequency: metav1.Duration{Duration: time.Hour},
			},
			Status: velerov1.BackupRepositoryStatus{Phase: velerov1.BackupRepositoryPhaseReady},
		})
	}
}

// calm reports whether an agent runs that nothing hinders.
func (s *Simulation) calm() bool {
	return slices.ContainsFunc(s.processes, func(p *process) bool { return p.alive() && !p.cut })
}

// unmaintained describes the repositories without a successful maintenance, and the Jobs that have not ended.
func (s *Simulation) unmaintained() string {
	for _, object := range s.API.List("backuprepositories") {
		if apiserver.As[velerov1.BackupRepository](object).Status.LastMaintenanceTime == nil {
			return "repository " + object.Key() + " was never maintained"
		}
	}
	for _, object := range s.API.List("jobs") {
		of := apiserver.As[batchv1.Job](object)
		if !controllers.Finished(of) {
			return "job " + object.Key() + " has not ended"
		}
		if of.Status.Succeeded+of.Status.Failed == 0 {
			return "job " + object.Key() + " has ended, which Velero's server cannot observe"
		}
		if s.API.Get("backuprepositories", veleroNamespace, object.GetLabels()[api.LabelRepository]) == nil {
			return "job " + object.Key() + " has no repository"
		}
	}
	return ""
}

// checkJobs checks that a repository has one unfinished Job at most, and that no more Jobs work in the cluster than may.
func (s *Simulation) checkJobs() error {
	unfinished := map[string]int{}
	total := 0
	for _, object := range s.API.List("jobs") {
		if err := s.checkRun(object); err != nil {
			return err
		}
		of := apiserver.As[batchv1.Job](object)
		if controllers.Finished(of) || of.DeletionTimestamp != nil || of.Annotations[api.AnnotationReleased] != "" {
			continue
		}
		if err := checkTerminating(of, s.hindered, s.API.Now()); err != nil {
			return err
		}
		name := of.Labels[api.LabelRepository]
		if unfinished[name]++; unfinished[name] > 1 {
			return fmt.Errorf("repository %s has %d unfinished jobs", name, unfinished[name])
		}
		if pod := s.PodOf(of.UID); pod == nil && of.Status.Active > 0 || pod != nil && controllers.Terminal(pod) {
			continue
		}
		if total++; total > s.plan.Maintenance {
			return fmt.Errorf("%d jobs work, and %d may", total, s.plan.Maintenance)
		}
	}
	return nil
}

// jobDeleted checks a job that is about to be deleted. The only worker of Velero's server waits for the end of each job,
// and never learns that one without an end is gone.
func (p *promises) jobDeleted(by string, object *apiserver.Object) {
	of := apiserver.As[batchv1.Job](object)
	if of.Status.Succeeded+of.Status.Failed == 0 {
		p.fail("%s deletes job %s, for which Velero's server waits", by, object.Key())
	}
}

// checkTerminating checks that no job that Kubernetes is ending holds its repository for long, while an agent runs.
func checkTerminating(of *batchv1.Job, hindered, now time.Time) error {
	const most = 12 * time.Minute
	for _, condition := range of.Status.Conditions {
		if condition.Type == batchv1.JobFailureTarget && min(now.Sub(condition.LastTransitionTime.Time), now.Sub(hindered)) > most {
			return fmt.Errorf("job %s has been ending for more than %s", of.Name, most)
		}
	}
	return nil
}

// checkHistory checks that the history of a repository has each run once.
func (s *Simulation) checkHistory() error {
	for _, object := range s.API.List("backuprepositories") {
		seen := map[string]bool{}
		for _, run := range apiserver.As[velerov1.BackupRepository](object).Status.RecentMaintenance {
			start := run.StartTimestamp.UTC().Format(time.RFC3339)
			if seen[start] {
				return fmt.Errorf("repository %s has the run of %s twice", object.Key(), start)
			}
			seen[start] = true
		}
	}
	return nil
}

const (
	refuseWrites = "an admission policy refuses a write of agents"
	silenceEver  = "a node is silent for ever"
)

// drawPolicy lets an admission policy refuse one write of the agents in one of eight schedules, silences a node for ever in
// another, and starts agents with the arguments of Velero's in a third. It draws from a stream of its own.
func drawPolicy(plan *Plan) {
	const oneIn, first, steps, picks = 8, 20, 400, 10_000
	random := rand.New(rand.NewPCG(plan.Seed, policyStream))
	at, pick := first+random.IntN(steps), random.IntN(picks)
	switch random.IntN(oneIn) {
	case 0:
		plan.Faults = append(plan.Faults, Fault{Step: at, What: refuseWrites, Pick: pick})
	case 1:
		plan.Faults = append(plan.Faults, Fault{Step: at, What: silenceEver, Pick: pick})
		plan.Faults = append(plan.Faults, Fault{Step: first + random.IntN(steps), What: cancel, Pick: pick})
	case 2: //nolint:mnd // the third of these schedules
		plan.Adopted = true
	}
}

// refusable are the writes of agents that an admission policy can refuse.
func refusable() []rights.Grant {
	return slices.DeleteFunc(rights.Grants(deploy.NamespaceRules(), deploy.ClusterRules()), func(g rights.Grant) bool {
		return slices.Contains([]string{"get", "list", "watch"}, g.Verb) || g.Resource == "events"
	})
}

// refusal is a write that a policy refuses.
type refusal struct {
	rights.Grant
	ends time.Time
}

// refuse puts a policy in force: in half of the schedules for minutes, else for longer than any deadline of a transfer.
func (s *Simulation) refuse(pick int) bool {
	const minutes, beyond = 7, 180
	all := refusable()
	rest := pick / len(all)
	lasts := time.Duration(rest%minutes) * time.Minute
	if rest%2 == 0 {
		lasts += beyond * time.Minute
	}
	s.faults.refused = refusal{all[pick%len(all)], time.Now().Add(lasts)}
	s.faults.uncounted = s.faults.refused.Resource == "jobs/status"
	if s.plan.Adopted { // an agent that cannot label its pod ends, and would be restarted until then
		s.faults.lasts = s.faults.refused.ends
	}
	s.trace.note("      ! " + s.faults.refused.String())
	return true
}

// admit removes the policy in force. What it stopped has as long as when it was asked for.
func (s *Simulation) admit() {
	if s.faults.refused.stopsTransfers() {
		for _, j := range s.work {
			j.asked = time.Now()
		}
	}
	s.faults.refused, s.faults.since = refusal{}, time.Now()
}

// refused returns the answer of the policy in force to a request.
func (s *Simulation) refused(p *parked) (outcome, bool) {
	policy := s.faults.refused
	if policy.Verb == "" {
		return outcome{}, false
	}
	record := p.request.Record()
	resource := record.Resource
	if record.Subresource != "" {
		resource += "/" + record.Subresource
	}
	if record.Verb != policy.Verb || resource != policy.Resource || record.APIGroup != policy.Group || (record.Namespace != veleroNamespace) != policy.Elsewhere {
		return outcome{}, false
	}
	s.trace.note("  → 403")
	err := apierrors.NewForbidden(schema.GroupResource{Group: policy.Group, Resource: policy.Resource}, record.Name, errPolicy)
	return outcome{response: apiserver.Failure(err).Response(p.http)}, true
}

// stopsTransfers reports whether no transfer can end under the policy: agents cannot write it, elect a coordinator, start,
// or end its mover.
func (r refusal) stopsTransfers() bool {
	return r.Resource == "leases" || r.Group == "velero.io" || r.Resource == "pods" && (r.Verb == "delete" || r.Verb == "patch")
}

// silenceEver takes a node off for ever, of which no pod has a volume that is backed up or restored on it. A mover that restores
// in place is not forced to end.
func (s *Simulation) silenceEver(pick int) bool {
	node := s.nodes[pick%len(s.nodes)]
	bound := slices.ContainsFunc(s.plan.Work, func(w Work) bool {
		return w.InPlace || w.onNode() && !w.Veleros && s.nodes[w.Node%len(s.nodes)] == node
	})
	if bound || len(s.nodes) < 2 || s.API.Get("nodes", "", node) == nil {
		return false
	}
	s.silence(node)
	s.faults.ever = node
	return true
}
