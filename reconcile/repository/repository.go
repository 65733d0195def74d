// Package repository reconciles BackupRepositories. A reconcile observes one, asks package maintenance for the
// decision, and starts, records or deletes its jobs. It never decides.
package repository

import (
	"context"
	"slices"
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
	"github.com/lateen-project/lateen/reconcile/writes"
)

// Reconciler maintains backup repositories for one term of a coordinator. It does not wait for jobs: their events
// trigger the next reconcile, so no repository delays another. It supports only one worker.
type Reconciler struct {
	Repositories MaintainedCache
	Locations    interface {
		Get(key string) (*velerov1.BackupStorageLocation, bool)
	}
	Jobs interface {
		List() []*batchv1.Job // all maintenance jobs of the namespace, whoever created them
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
	written     writes.Overlay[*velerov1.BackupRepository] // by key
	writtenJobs writes.Overlay[*batchv1.Job]               // by UID
	observed    map[types.UID]jobState                     // only the worker uses it

	lock   sync.Mutex                 // Job, an event handler, also reads the queue
	states map[string]repositoryState // by key
}

// MaintainedCache caches all BackupRepositories.
type MaintainedCache interface {
	Get(key string) (*velerov1.BackupRepository, bool)
	List() []*velerov1.BackupRepository
}

// JobPlan specifies a job.
type JobPlan struct {
	Template objects.JobTemplate
	Settings objects.JobSettings
	Created  func(*batchv1.Job) // call it with the job that was created from this plan
}

// Reconcile executes one step for one repository. After a conflict, it observes the repository again soon: an event of the
// change usually comes first, and none comes if nothing has changed.
func (m *Reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	defer m.exportLoad()
	requeue, err := m.step(ctx, key)
	if apierrors.IsConflict(err) {
		klog.FromContext(ctx).V(4).Info("Another client changed the object; waiting for its event", "error", err.Error())
		return reconcile.ConflictRequeue, nil
	}
	return requeue, err
}

// step decides and executes one step.
func (m *Reconciler) step(ctx context.Context, key string) (time.Duration, error) {
	object, exists := m.Repositories.Get(key)
	if !exists {
		m.forget(key)
		return m.reconcileOrphans(ctx, key)
	}
	object = m.written.Newest(key, object)
	jobs := m.jobs()
	step := m.next(object, jobs)
	m.report(ctx, key, object, step)
	switch step.Action {
	case maintenance.Wait:
		return step.After, nil
	case maintenance.Record:
		return 0, m.record(ctx, key, object, step)
	case maintenance.Abandon:
		return m.abandon(ctx, key, object, step)
	case maintenance.MarkFailed:
		return 0, m.markFailed(ctx, key, step.Jobs)
	case maintenance.Delete:
		return 0, m.delete(ctx, key, step.Jobs)
	case maintenance.Start:
		return m.start(ctx, key, object, step, jobs)
	}
	return 0, nil
}

// reconcileOrphans executes one step for the jobs of a repository that does not exist. The key contains the name of
// the repository, or the value of its jobs' label.
func (m *Reconciler) reconcileOrphans(ctx context.Context, key string) (time.Duration, error) {
	_, name := splitKey(key)
	step := maintenance.WithoutRepository(m.jobs()[objects.RepositoryLabel(name)], m.Policy, m.Clock.Now())
	switch step.Action {
	case maintenance.MarkFailed:
		return 0, m.markFailed(ctx, key, step.Jobs)
	case maintenance.Delete:
		return 0, m.delete(ctx, key, step.Jobs)
	case maintenance.Wait, maintenance.Record, maintenance.Abandon, maintenance.Start:
	}
	return step.After, nil
}

func (m *Reconciler) next(object *velerov1.BackupRepository, jobs jobsByLabel) maintenance.Step {
	location, exists := m.Locations.Get(object.Namespace + "/" + object.Spec.BackupStorageLocation)
	where := maintenance.Location{Exists: exists}
	if exists {
		where.ReadOnly = location.Spec.AccessMode == velerov1.BackupStorageLocationAccessModeReadOnly
	}
	repository := maintenance.From(object)
	repository.Failures = m.state(object.Namespace + "/" + object.Name).failures
	return maintenance.Next(repository, jobs[objects.RepositoryLabel(object.Name)], where, m.Policy, m.Clock.Now())
}

// Job handles an add, update or delete event of a job. It enqueues the repository of the job and the repositories
// that wait for a free place. Without a repository, the label value is the key, and the job itself is reconciled.
func (m *Reconciler) Job(job *batchv1.Job) {
	if !slices.ContainsFunc(m.Jobs.List(), func(cached *batchv1.Job) bool { return cached.UID == job.UID }) {
		m.writtenJobs.Forget(string(job.UID))
	}
	key := job.Namespace + "/" + job.Labels[api.LabelRepository]
	for _, object := range m.Repositories.List() {
		if objects.RepositoryLabel(object.Name) == job.Labels[api.LabelRepository] {
			key = object.Namespace + "/" + object.Name
		}
	}
	m.Enqueue(key)
	m.enqueueQueued()
}

// TerminalPod handles an add, update or delete event of a terminated pod. It enqueues the repositories that wait for a
// free place.
func (m *Reconciler) TerminalPod(*corev1.Pod) { m.enqueueQueued() }

// Location handles an add, update or delete event of a BackupStorageLocation.
func (m *Reconciler) Location(location *velerov1.BackupStorageLocation) {
	for _, object := range m.Repositories.List() {
		if object.Spec.BackupStorageLocation == location.Name {
			m.Enqueue(object.Namespace + "/" + object.Name)
		}
	}
}
