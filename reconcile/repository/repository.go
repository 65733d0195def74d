// Package repository reconciles BackupRepositories. A reconcile observes one, asks package maintenance for the
// decision, and starts, records or deletes its jobs. It never decides.
package repository

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile"
	"github.com/lateen-project/lateen/reconcile/maintenance"
)

// Reconciler maintains backup repositories for one term of a coordinator. It does not wait for jobs: their events
// trigger the next reconcile, so no repository delays another. It supports only one worker.
type Reconciler struct {
	Repositories MaintainedCache
	Locations    interface {
		Get(key string) (*velerov1.BackupStorageLocation, bool)
	}
	Jobs interface { // all maintenance jobs of the namespace, whoever created them; with the recorded writes of this process
		List() []*batchv1.Job
		Record(written *batchv1.Job)
		RecordDeletion(key string, uid types.UID)
	}
	TerminalPods interface {
		List() []*corev1.Pod // the pods of these jobs that have terminated
	}
	Client    reconcile.Patcher[*velerov1.BackupRepository]
	JobClient exposer.Jobs
	// Plan returns the specification of a repository's next job, from fresh reads. On an error no job is created.
	Plan    func(ctx context.Context, repository *velerov1.BackupRepository) (JobPlan, error)
	Enqueue func(key string)

	Policy maintenance.Policy
	Limit  int // working jobs in the cluster

	Recorder record.EventRecorder
	Metrics  *metrics.Maintenance
	Clock    clock.PassiveClock

	// All of this may be lost: the next coordinator reads it from the API server.
	observed map[types.UID]jobState // only the worker uses it

	lastLocations map[string]maintenance.Location // of the last event; only Location uses it

	lock   sync.Mutex                 // Job, an event handler, also reads the queue
	states map[string]repositoryState // by key
}

// MaintainedCache caches all BackupRepositories, with the recorded writes of this process.
type MaintainedCache interface {
	Get(key string) (*velerov1.BackupRepository, bool)
	List() []*velerov1.BackupRepository
	Record(written *velerov1.BackupRepository)
}

// JobPlan specifies a job.
type JobPlan struct {
	Template objects.JobTemplate
	Settings objects.JobSettings
	Created  func(*batchv1.Job) // call it with the job that was created from this plan
}

// Reconcile executes one step for one repository. After a conflict, it observes the repository again soon: an event of the
// change usually comes first, and none comes if nothing has changed.
func (r *Reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	defer r.exportLoad()
	requeue, err := r.step(ctx, key)
	if apierrors.IsConflict(err) {
		klog.FromContext(ctx).V(4).Info("Another client changed the object; waiting for its event", "error", err.Error())
		return reconcile.ConflictRequeue, nil
	}
	return requeue, err
}

// step decides and executes one step.
func (r *Reconciler) step(ctx context.Context, key string) (time.Duration, error) {
	object, exists := r.Repositories.Get(key)
	if !exists {
		r.forget(key)
		namespace, name, _ := strings.Cut(key, "/")
		if owner := r.ownerOf(namespace, objects.RepositoryLabel(name)); owner != key { // the cache lacked it, or the name is long
			r.Enqueue(owner)
			return 0, nil
		}
		return r.reconcileOrphans(ctx, key)
	}
	jobs := r.jobs()
	step := r.next(object, jobs)
	r.report(ctx, key, object, step)
	switch step.Action {
	case maintenance.Wait:
		return step.After, nil
	case maintenance.Record:
		return 0, r.record(ctx, key, object, step)
	case maintenance.Abandon:
		return r.abandon(ctx, key, object, step)
	case maintenance.MarkFailed:
		return 0, r.markFailed(ctx, key, step.Jobs)
	case maintenance.Delete:
		return 0, r.delete(ctx, key, step.Jobs)
	case maintenance.Start:
		return r.start(ctx, key, object, step, jobs)
	}
	return 0, nil
}

// reconcileOrphans executes one step for the jobs of a repository that does not exist. The key contains the name of
// the repository, or the value of its jobs' label.
func (r *Reconciler) reconcileOrphans(ctx context.Context, key string) (time.Duration, error) {
	_, name, _ := strings.Cut(key, "/")
	step := maintenance.WithoutRepository(r.jobs()[objects.RepositoryLabel(name)], r.Policy, r.Clock.Now())
	switch step.Action {
	case maintenance.MarkFailed:
		return 0, r.markFailed(ctx, key, step.Jobs)
	case maintenance.Delete:
		return 0, r.delete(ctx, key, step.Jobs)
	case maintenance.Wait, maintenance.Record, maintenance.Abandon, maintenance.Start:
	}
	return step.After, nil
}

func (r *Reconciler) next(object *velerov1.BackupRepository, jobs jobsByLabel) maintenance.Step {
	where := r.location(object.Namespace + "/" + object.Spec.BackupStorageLocation)
	repository, state := maintenance.From(object), r.state(object.Namespace+"/"+object.Name)
	repository.Failures, repository.Factor = state.failures, state.factor
	return maintenance.Next(repository, jobs[objects.RepositoryLabel(object.Name)], where, r.Policy, r.Clock.Now())
}

// Job handles an add, update or delete event of a job. It enqueues the repository of the job and the repositories
// that wait for a free place. Without a repository, the label value is the key, and the job itself is reconciled.
func (r *Reconciler) Job(job *batchv1.Job) {
	r.Enqueue(r.ownerOf(job.Namespace, job.Labels[api.LabelRepository]))
	r.enqueueQueued()
}

// ownerOf returns the key of the repository whose jobs have that label, or one of the label itself if there is none.
func (r *Reconciler) ownerOf(namespace, label string) string {
	for _, object := range r.Repositories.List() {
		if objects.RepositoryLabel(object.Name) == label {
			return object.Namespace + "/" + object.Name
		}
	}
	return namespace + "/" + label
}

// TerminalPod handles an add, update or delete event of a terminated pod. It enqueues the repositories that wait for a
// free place.
func (r *Reconciler) TerminalPod(*corev1.Pod) { r.enqueueQueued() }

func (r *Reconciler) location(key string) maintenance.Location {
	location, exists := r.Locations.Get(key)
	return maintenance.Location{Exists: exists, ReadOnly: exists && location.Spec.AccessMode == velerov1.BackupStorageLocationAccessModeReadOnly}
}

// Location handles an add, update or delete event of a BackupStorageLocation. It ignores the writes of Velero's server to the
// status, each minute.
func (r *Reconciler) Location(location *velerov1.BackupStorageLocation) {
	key := location.Namespace + "/" + location.Name
	now := r.location(key)
	if last, known := r.lastLocations[key]; known && now == last {
		return
	}
	if r.lastLocations == nil {
		r.lastLocations = map[string]maintenance.Location{}
	}
	r.lastLocations[key] = now
	for _, object := range r.Repositories.List() {
		if object.Spec.BackupStorageLocation == location.Name {
			r.Enqueue(object.Namespace + "/" + object.Name)
		}
	}
}

// start creates the due job of a repository if the limit and the older repositories allow it. It returns the delay
// until the job must have a pod: a job that is deleted before the watch shows it has no event.
func (r *Reconciler) start(ctx context.Context, key string, object *velerov1.BackupRepository, step maintenance.Step, jobs jobsByLabel) (time.Duration, error) {
	own := maintenance.Waiting{Name: key, Due: step.Due}
	if !maintenance.MayStart(own, r.waiting(key, jobs), r.running(jobs), r.Limit) {
		r.update(key, func(state *repositoryState) { state.queued, state.due = true, step.Due })
		return 0, nil
	}
	r.update(key, func(state *repositoryState) { state.queued, state.due = false, time.Time{} })
	created, err := r.createJob(ctx, object, step)
	terminal := (*exposer.TerminalError)(nil)
	switch {
	case errors.Is(err, exposer.ErrAlreadyMaintained):
		r.update(key, func(state *repositoryState) { state.createFailed = false })
		return 0, nil // its event is on the way
	case errors.As(err, &terminal):
		never := objects.JobStatus{Outcome: objects.JobFailed, Created: r.Clock.Now(), Finished: r.Clock.Now()}
		record := objects.JobRecord{Verdict: objects.VerdictFailed, Failures: step.Failures, Factor: step.Factor}
		err := r.recordRuns(ctx, key, object, never, record, terminal.Error())
		r.enqueueQueued()
		return 0, err
	case err != nil:
		if !errors.Is(err, errUnanswered) && !r.state(key).createFailed {
			r.update(key, func(state *repositoryState) { state.createFailed = true })
			r.Recorder.Eventf(ReferenceTo(object), corev1.EventTypeWarning, EventSkipped, "Maintenance job cannot be created, retrying: %v", err)
		}
		return 0, err
	}
	r.update(key, func(state *repositoryState) { state.createFailed = false })
	r.Jobs.Record(created)
	klog.FromContext(ctx).Info("Started maintenance", "repository", key, "job", created.Name, "due", step.Due,
		"priorityClass", created.Spec.Template.Spec.PriorityClassName, "memoryFactor", step.Factor)
	return r.Policy.PodWait, nil
}

// errUnanswered says that a job may exist in spite of an error. It needs its place then.
var errUnanswered = errors.New("the API server did not answer")

func (r *Reconciler) createJob(ctx context.Context, object *velerov1.BackupRepository, step maintenance.Step) (*batchv1.Job, error) {
	plan, err := r.Plan(ctx, object)
	if err != nil {
		return nil, err
	}
	what := objects.Maintenance{
		Name: object.Name, Namespace: object.Namespace, UID: object.UID,
		VolumeNamespace: object.Spec.VolumeNamespace, Location: object.Spec.BackupStorageLocation, Type: object.Spec.RepositoryType,
		Due: step.Due, Failures: step.Failures, Factor: step.Factor, Timeout: r.Policy.Timeout,
	}
	created, err := r.JobClient.Start(ctx, objects.Job(what, plan.Template, plan.Settings), objects.JobCacheClaim(what, plan.Settings))
	answer := apierrors.APIStatus(nil) // of a webhook it may lack a reason
	switch {
	case err == nil:
		plan.Created(created)
	case errors.Is(err, exposer.ErrAlreadyMaintained):
	case !errors.As(err, &answer), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return nil, fmt.Errorf("%w: %w", errUnanswered, err)
	}
	return created, err
}

// repositoryState is what this process knows of a repository beyond its caches.
type repositoryState struct {
	place
	reported maintenance.Reason // the last reason that blocked it
	failures int                // consecutive failed runs, uncreated jobs too
	factor   float64            // of the memory limit of the next job
}

// place is the place of a due repository among the others. It is the zero value for a repository that is not due.
type place struct {
	queued       bool      // it waits for a free place
	due          time.Time // since when it is due, if it is queued
	createFailed bool      // its job could not be created; it blocks no other repository
}

func (p place) equal(other place) bool {
	return p.queued == other.queued && p.due.Equal(other.due) && p.createFailed == other.createFailed
}

func (r *Reconciler) state(key string) repositoryState {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.states[key]
}

// update changes the state of a repository. A changed place may let others start, so it enqueues the first ones.
func (r *Reconciler) update(key string, change func(*repositoryState)) {
	r.lock.Lock()
	before := r.states[key]
	after := before
	change(&after)
	if r.states == nil {
		r.states = map[string]repositoryState{}
	}
	r.states[key] = after
	r.lock.Unlock()
	if !before.equal(after.place) {
		r.enqueueQueued()
	}
}

// forget drops the state of a repository that does not exist.
func (r *Reconciler) forget(key string) {
	_, name, _ := strings.Cut(key, "/")
	r.Metrics.DeleteRepository(name)
	r.lock.Lock()
	delete(r.states, key)
	r.lock.Unlock()
	r.enqueueQueued()
}

// enqueueQueued enqueues the first Limit repositories of the queue. So a thousand queued ones are not all reconciled
// at each end of a job.
func (r *Reconciler) enqueueQueued() {
	r.lock.Lock()
	defer r.lock.Unlock()
	keys := slices.Collect(maps.Keys(r.states))
	keys = slices.DeleteFunc(keys, func(key string) bool { return !r.states[key].queued })
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(r.states[a].due.Compare(r.states[b].due), cmp.Compare(a, b))
	})
	for _, key := range keys[:min(r.Limit, len(keys))] {
		r.Enqueue(key)
	}
}

// waiting returns the other repositories whose job is due and can be created.
func (r *Reconciler) waiting(but string, jobs jobsByLabel) []maintenance.Waiting {
	var all []maintenance.Waiting
	for _, object := range r.Repositories.List() {
		key := object.Namespace + "/" + object.Name
		if key == but || r.state(key).createFailed {
			continue
		}
		if step := r.next(object, jobs); step.Action == maintenance.Start {
			all = append(all, maintenance.Waiting{Name: key, Due: step.Due})
		}
	}
	return all
}
