package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/leader"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/reconcile/repository"
)

// identityLength is the number of random characters that distinguish the processes of one node.
const identityLength = 8

// agentTimeout is how long a node may be without a Ready agent before the coordinator acts for it.
const agentTimeout = time.Minute

// candidate returns this process as a candidate of the election. Its identity is unique to this process: otherwise, a
// restarted process mistakes the term of its predecessor for its own. The kubelet restarts a container only after the
// previous one has ended. Therefore, a Lease held under the prefix Former is free at once.
func (a *assembly) candidate() (*leader.Coordinator, error) {
	options := a.Election
	options.Client, options.Namespace, options.Name = a.clients.lease, a.Flags.Namespace, deploy.CoordinatorLease
	options.Identity = a.Flags.NodeName + "_"
	if a.Flags.PodUID != "" {
		options.Identity += a.Flags.PodUID + "_"
		options.Former = options.Identity
	}
	options.Identity += cmp.Or(a.Process, rand.String(identityLength))
	options.Clock, options.Agents = a.Clock, a.startup.Agents
	candidate, err := leader.NewCoordinator(options)
	if err != nil {
		return nil, fmt.Errorf("prepare coordinator election: %w", err)
	}
	return candidate, nil
}

// coordinate campaigns for the Lease and runs a term while this agent holds it.
func (a *assembly) coordinate(ctx context.Context, candidate *leader.Coordinator, kinds []kind) error {
	return candidate.Run(ctx, func(ctx context.Context) {
		if err := a.runTerm(ctx, kinds); err != nil {
			klog.FromContext(ctx).Error(err, "Coordinator term failed")
		}
	})
}

// runTerm runs one term. It first syncs the caches that only a coordinator has. If they do not sync in time, or can no longer be
// updated, it gives the term up: another agent may be able to list these resources.
func (a *assembly) runTerm(ctx context.Context, kinds []kind) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	term, err := a.caches.NewTerm(a.clients.kube)
	if err != nil {
		return fmt.Errorf("create caches of the coordinator: %w", err)
	}
	term.Watch(a.watchdog(func(failing string) {
		a.reportLacking(ctx, "the coordinator", failing)
		end()
	}))
	nodes := informers.NewNodes(ctx, a.clients.kube)
	defer func() { end(); nodes.Wait() }() // also on a return before the term began
	agents := a.agentTracker(nodes, kinds)
	handled, err := a.addTermHandlers(term, kinds, agents)
	if err != nil {
		return err
	}
	running := make(chan struct{})
	go func() {
		defer close(running)
		var both sync.WaitGroup
		both.Go(func() { term.Run(ctx) })
		both.Go(func() { a.snapshots.Run(ctx) })
		both.Wait()
	}()
	defer func() { end(); <-running }()
	inTime, stop := context.WithTimeout(ctx, a.syncTimeout())
	defer stop()
	if !synced(inTime, "caches of the coordinator", handled...) {
		if ctx.Err() == nil {
			a.reportLacking(ctx, "the coordinator", term.Lacking())
		}
		return nil
	}
	return a.lead(ctx, kinds, term, agents)
}

// lead acts for resources without a node until the term ends. The caches of the term are synced.
func (a *assembly) lead(ctx context.Context, kinds []kind, term *informers.CoordinatorCaches, agents *leader.AgentTracker) error {
	agents.Start()
	a.assume(kinds, term, agents)
	a.coordination.SetCoordinator(true) // before a term that has ended already steps down
	stepDown := func() {
		if a.leadership.agents.CompareAndSwap(agents, nil) {
			a.coordination.SetCoordinator(false)
		}
	}
	context.AfterFunc(ctx, stepDown) // does not wait for what still runs of this term
	defer func() {
		stepDown()
		ends := make([]func(), len(kinds))
		for i, k := range kinds {
			ends[i] = k.endTerm()
		}
		a.caches.SetCoordinator(nil)
		agents.Stop()
		for _, end := range ends {
			end()
		}
	}()
	for _, k := range kinds {
		k.beginTerm()
	}
	maintained := make(chan error, 1)
	go func() { maintained <- a.maintain(ctx) }()
	var finishing sync.WaitGroup
	finishing.Go(func() { a.labelDone(ctx, kinds) })
	finishing.Go(func() { a.deleteFinished(ctx) })
	finishing.Go(func() { a.writeProgress(ctx, kinds) })
	defer finishing.Wait()
	a.sweeper(ctx, kinds).Run(ctx)
	return <-maintained
}

// assume makes this agent the coordinator. It counts what all transfers hold before it may accept the first one.
func (a *assembly) assume(kinds []kind, term *informers.CoordinatorCaches, agents *leader.AgentTracker) {
	a.preparing.ForgetSlots(a.Flags.NodeName) // other nodes may have changed since the last term
	a.preparing.SetNodes(agents.Nodes())
	a.caches.SetCoordinator(term)
	for _, k := range kinds {
		k.track()
	}
	a.leadership.agents.Store(agents)
}

// progressRate limits the writes of progress in the whole cluster, per second. A mover reports every ten seconds: up to 50
// movers at work, each report is written, and beyond that the last one of each in turn.
const progressRate = 5

// writeProgress writes what all movers report, until the term ends.
func (a *assembly) writeProgress(ctx context.Context, kinds []kind) {
	reports, err := informers.NewReports(a.clients.kube, a.Flags.Namespace)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to watch progress of movers")
		return
	}
	limiter := flowcontrol.NewTokenBucketRateLimiter(progressRate, progressRate)
	const name = "progress"
	controller := reconcile.NewController(reconcile.Options{
		Name: name, Workers: 1, Grace: stepGrace, Clock: a.Clock, Metrics: a.Metrics.Workqueues(), Queue: a.queue(name),
	}, func(ctx context.Context, key string) (time.Duration, error) {
		of, key, _ := strings.Cut(key, "/")
		for _, k := range kinds {
			if k.kind() == of {
				return k.writeProgress(ctx, key, reports.About, limiter)
			}
		}
		return 0, nil
	})
	if _, err := reports.Events.AddHandler(func(event *corev1.Event) {
		about := event.InvolvedObject
		controller.Enqueue(about.Kind + "/" + about.Namespace + "/" + about.Name)
	}); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to watch progress of movers")
		return
	}
	reports.Watch(a.watchdog(func(failing string) { a.reportLacking(ctx, "the progress of movers", failing) }))
	var watching sync.WaitGroup
	watching.Go(func() { reports.Run(ctx) })
	controller.Run(ctx, nil)
	watching.Wait()
}

// agentTracker enqueues what depends on the agent of a node when its state changes.
func (a *assembly) agentTracker(nodes leader.Nodes, kinds []kind) *leader.AgentTracker {
	var agents *leader.AgentTracker
	agents = leader.NewAgentTracker(cmp.Or(a.AgentTimeout, agentTimeout), a.Clock, nodes, func(node string) {
		a.preparing.SetNodes(agents.Nodes())
		if node != a.Flags.NodeName { // it may have other labels, or be another one of that name
			a.preparing.SetSlotsOf(node, 0)
		}
		if !agents.Knows(node) {
			a.preparing.Forget(node)
			a.nodeSlots.Forget(node)
		}
		for _, k := range kinds {
			k.enqueueNode(node)
		}
	})
	return agents
}

func (a *assembly) addTermHandlers(term *informers.CoordinatorCaches, kinds []kind, agents *leader.AgentTracker) ([]cache.DoneChecker, error) {
	handled, err1 := term.Agents.AddHandler(func(pod *corev1.Pod) {
		if _, exists := term.Agents.Get(informers.Key(pod)); exists {
			agents.Update(pod)
		} else {
			agents.Delete(pod)
		}
	})
	classes, err2 := term.Classes.AddHandler(func(class *storagev1.StorageClass) { a.targets.ClassChanged(class.Name) })
	all, failed := append(term.Handled, handled, classes), errors.Join(err1, err2)
	for _, k := range kinds {
		done, err := k.addTermHandlers(a.caches, term)
		all, failed = append(all, done...), errors.Join(failed, err)
	}
	return all, failed
}

// EventJobConfig is the reason of a Kubernetes Event on a BackupRepository whose job does not follow the
// configuration.
const EventJobConfig = "MaintenanceConfigProblem"

// maintain maintains repositories for one term of a coordinator. It runs beside the rest of the term and never blocks it. After an
// outage of its caches, it begins again.
func (a *assembly) maintain(ctx context.Context) (err error) {
	for err == nil && ctx.Err() == nil && a.Flags.MaintenanceConcurrency > 0 {
		err = a.maintainUntilOutage(ctx)
	}
	return err
}

// maintainUntilOutage ends if its caches can no longer be updated. If they do not sync in time, it reports that; it begins when they
// have synced.
func (a *assembly) maintainUntilOutage(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	caches, err := informers.NewRepositoryCaches(a.clients.kube, a.clients.velero, a.Flags.Namespace, api.LabelRepository)
	if err != nil {
		return fmt.Errorf("create caches of maintenance: %w", err)
	}
	maintainer := a.maintainer(caches)
	const name = "backuprepository"
	controller := reconcile.NewController(reconcile.Options{
		Name: name, Workers: 1, Grace: stepGrace, Clock: a.Clock, Metrics: a.Metrics.Workqueues(), Queue: a.queue(name),
	}, maintainer.Reconcile)
	maintainer.Enqueue = controller.Enqueue
	handled, err := addRepositoryHandlers(caches, maintainer)
	if err != nil {
		return err
	}
	caches.Watch(a.watchdog(func(failing string) {
		a.reportLacking(ctx, "repository maintenance", failing)
		if caches.Lacking() == "" {
			end()
			return
		}
		a.showProblems(config.SectionMaintenance, []config.Problem{{Section: config.SectionMaintenance, Reason: config.Forbidden}})
	}))
	var running sync.WaitGroup
	running.Go(func() { caches.Run(ctx) })
	defer running.Wait()
	if synced(ctx, "caches of maintenance", handled...) {
		a.showProblems(config.SectionMaintenance, nil)
	}
	controller.Run(ctx, nil) // if the term has ended before, it only shuts the queue down
	a.maintenance.Reset()
	a.Metrics.ForgetPriorityClass(priority.MaintenanceJob)
	a.showProblems(config.SectionMaintenance, nil)
	return nil
}

func (a *assembly) maintainer(caches *informers.RepositoryCaches) *repository.Reconciler {
	policy := cmp.Or(a.Maintenance, maintenance.DefaultPolicy())
	policy.Frequency, policy.Timeout = a.Flags.MaintenanceFrequency, a.Flags.MaintenanceTimeout
	start, end, _ := a.Flags.Window() // Complete has parsed it
	policy.Window = maintenance.Window{Start: start, End: end}
	planner := jobPlanner{assembly: a, problems: jobProblems{}, exists: func(key string) bool {
		_, exists := caches.Repositories.Get(key)
		return exists
	}}
	return &repository.Reconciler{
		Repositories: caches.Repositories, Locations: caches.Locations, Jobs: caches.Jobs, TerminalPods: caches.TerminalPods,
		Client:    a.clients.velero.BackupRepositories(a.Flags.Namespace),
		JobClient: exposer.Jobs{Client: a.clients.kube},
		Plan:      planner.plan,
		Policy:    policy, Limit: a.Flags.MaintenanceConcurrency,
		Recorder: a.recorder, Metrics: a.maintenance, Clock: a.Clock,
	}
}

func addRepositoryHandlers(caches *informers.RepositoryCaches, maintainer *repository.Reconciler) ([]cache.DoneChecker, error) {
	repositories, err1 := caches.Repositories.AddHandler(func(repository *velerov1.BackupRepository) { maintainer.Enqueue(informers.Key(repository)) })
	locations, err2 := caches.Locations.AddHandler(maintainer.Location)
	jobs, err3 := caches.Jobs.AddHandler(maintainer.Job)
	pods, err4 := caches.TerminalPods.AddHandler(maintainer.TerminalPod)
	return []cache.DoneChecker{repositories, locations, jobs, pods}, errors.Join(err1, err2, err3, err4)
}

// jobPlanner plans the next maintenance job of a repository. One worker uses it.
type jobPlanner struct {
	*assembly
	problems jobProblems
	exists   func(key string) bool // reports whether a BackupRepository with this key exists
}

func (j jobPlanner) plan(ctx context.Context, object *velerov1.BackupRepository) (repository.JobPlan, error) {
	server, err := startup.ReadServer(ctx, j.clients.kube, j.Flags.Namespace, startup.ServerName(j.Flags.MoverTemplate))
	if err != nil {
		return repository.JobPlan{}, err
	}
	wanted, problems, err := startup.ReadMaintenance(ctx, j.clients.kube, j.Flags, server, object)
	if err != nil {
		return repository.JobPlan{}, err
	}
	template := objects.JobTemplate{Template: j.startup.Templates[corev1.Linux]}
	if server != nil {
		if template, err = startup.JobTemplate(server, j.Flags); err != nil {
			return repository.JobPlan{}, err
		}
	}
	j.reportProblems(ctx, object, problems)
	class := priority.Unresolved("", wanted.Unreadable, "")
	if wanted.Unreadable == "" {
		class = j.resolve(ctx, wanted.PriorityClassName)
	}
	wanted.Jobs.PriorityClass = class.Effective
	return repository.JobPlan{
		Template: template, Settings: wanted.Jobs, Created: func(job *batchv1.Job) { j.reportClass(ctx, object, job, class) },
	}, nil
}

// reportProblems reports the new Problems, once for all the jobs they concern, and exports all current ones.
func (j jobPlanner) reportProblems(ctx context.Context, object *velerov1.BackupRepository, problems []config.Problem) {
	for _, problem := range j.problems.replace(informers.Key(object), problems, j.exists) {
		warnOf(ctx, problem)
		j.Metrics.ConfigFallback(string(problem.Section), string(problem.Reason))
		j.recorder.Event(repository.ReferenceTo(object), corev1.EventTypeWarning, EventJobConfig, reconcile.EventMessage(problem.String()))
	}
	j.showProblems(config.SectionMaintenance, j.problems.all())
}

// reportClass reports whether a job runs with the configured priority class. An admission webhook or policy may have changed
// the job.
func (j jobPlanner) reportClass(ctx context.Context, object *velerov1.BackupRepository, job *batchv1.Job, class priority.Resolution) {
	if actual := job.Spec.Template.Spec.PriorityClassName; class.Effective != "" && actual != class.Effective {
		class.Effective, class.Reason = actual, priority.Rejected
	}
	j.Metrics.PriorityClass(priority.MaintenanceJob, class.Shown(), class.Effective)
	if !class.FallsBack() {
		return
	}
	j.Metrics.PriorityClassFallback(priority.MaintenanceJob, string(class.Reason))
	warn(ctx, "Priority class is not in force, created maintenance job without one", "configured", class.Configured, "reason", class.Reason)
	j.recorder.Eventf(repository.ReferenceTo(object), corev1.EventTypeWarning, EventPriorityClass,
		"Maintenance job runs without priority class %q (%s). The next job reads the configuration again", class.Configured, class.Reason)
}

// newMaintenanceMetrics registers the metrics of maintenance if this agent maintains repositories.
func newMaintenanceMetrics(options Options) *metrics.Maintenance {
	if options.Flags.MaintenanceConcurrency == 0 {
		return nil
	}
	return options.Metrics.Maintenance()
}
