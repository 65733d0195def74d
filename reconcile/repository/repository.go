// Package repository reconciles BackupRepositories. A reconcile observes one, asks package maintenance for the
// decision, and starts, records or deletes its jobs. It never decides.
package repository

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer"
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
	Client    reconcile.Patcher[*velerov1.BackupRepository]
	JobClient exposer.Jobs
	// Plan returns the specification of a repository's next job, from fresh reads. On an error no job is created.
	Plan    func(ctx context.Context, repository *velerov1.BackupRepository) (JobPlan, error)
	Enqueue func(key string)

	Policy maintenance.Policy
	Limit  int // unfinished jobs in the cluster

	Recorder record.EventRecorder
	Metrics  *metrics.Maintenance
	Clock    clock.PassiveClock

	overlay      writes.Overlay[*velerov1.BackupRepository]
	lock         sync.Mutex
	wrote        map[types.UID]*batchv1.Job    // created or updated jobs, until the cache has that version
	deleted      sets.Set[types.UID]           // removed jobs, until they are no longer cached
	states       map[string]maintenance.Reason // by key: the last reason that blocked it
	queued       map[string]time.Time          // keys that wait for a free place, and since when they are due
	createFailed map[string]bool               // keys whose job could not be created; they block no other key

	stages   map[types.UID]stageSeen         // by job, until it is no longer cached
	records  map[types.UID]objects.JobRecord // of recorded jobs, until they are no longer cached
	failures map[string]int                  // by key: consecutive failed runs, uncreated jobs too
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

// Reconcile executes one step for one repository.
func (m *Reconciler) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	defer m.load()
	object, exists := m.Repositories.Get(key)
	if !exists {
		m.forget(key)
		return m.reconcileOrphans(ctx, key)
	}
	object = m.overlay.Newest(key, object)
	jobs := m.jobs()
	step := m.next(object, jobs)
	m.note(ctx, key, object, step)
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
		return 0, m.remove(ctx, key, step.Jobs)
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
		return 0, m.remove(ctx, key, step.Jobs)
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
	repository.Failures = m.failuresOf(object.Namespace + "/" + object.Name)
	return maintenance.Next(repository, jobs[objects.RepositoryLabel(object.Name)], where, m.Policy, m.Clock.Now())
}

// record records the result of a finished job.
func (m *Reconciler) record(ctx context.Context, key string, object *velerov1.BackupRepository, step maintenance.Step) error {
	job, verdict, why := step.Jobs[0], objects.VerdictSucceeded, ""
	if job.Outcome == objects.JobFailed {
		var err error
		if verdict, why, err = m.JobClient.Failure(ctx, object.Namespace, job); err != nil {
			return err
		}
	}
	return m.recordRuns(ctx, key, object, job, objects.JobRecord{Verdict: verdict, Failures: step.Failures, Factor: step.Factor}, why)
}

// classGone is the start of the message of a run that had no pod because its PriorityClass does not exist.
const classGone = "PriorityClass of its job does not exist: "

// abandon records that a job cannot make progress, and why. The next step marks the job failed.
func (m *Reconciler) abandon(ctx context.Context, key string, object *velerov1.BackupRepository, step maintenance.Step) (time.Duration, error) {
	job, record := step.Jobs[0], objects.JobRecord{Verdict: objects.VerdictFailed, Failures: step.Failures, Factor: step.Factor}
	why, stuck, err := m.JobClient.Stuck(ctx, object.Namespace, job)
	if err != nil {
		return 0, err
	}
	if !stuck {
		return m.Policy.PodWait, nil // not written by the job controller yet, or another container is not ready
	}
	if job.Stage() == objects.StageNoPod {
		if exists, err := m.JobClient.Exists(ctx, object.Namespace, job); err != nil {
			return 0, err
		} else if !exists { // it was deleted before the watch showed it
			m.removed(job.UID)
			m.Enqueue(key)
			return 0, nil
		}
		classDeleted, err := m.JobClient.ClassGone(ctx, job)
		if err != nil {
			return 0, err
		}
		if classDeleted {
			record.Verdict, why = objects.VerdictClassMissing, classGone+job.Class
		}
	}
	return 0, m.recordRuns(ctx, key, object, job, record, why)
}

// recordRuns writes the run of a job to the repository's history, then to the job itself, and then counts it. A
// recorded job is never counted twice, whatever happens to the history. A job that could not be created has no UID.
func (m *Reconciler) recordRuns(ctx context.Context, key string, object *velerov1.BackupRepository, job objects.JobStatus, record objects.JobRecord, why string) error {
	written, err := m.write(ctx, key, object, maintenance.RunOf(job, why))
	if err != nil || !written {
		return err
	}
	if job.UID != "" {
		err := m.JobClient.Record(ctx, object.Namespace, job, record)
		if apierrors.IsForbidden(err) { // this process still remembers it
			klog.FromContext(ctx).Error(err, "Failed to record result of maintenance job", "repository", key, "job", job.Name)
		} else if err != nil {
			return err
		}
	}
	m.recorded(key, job.UID, record)
	m.ended(ctx, object, why, job.Outcome == objects.JobSucceeded, job.Finished.Sub(job.Created))
	m.Enqueue(key) // the next step does not wait for the event
	return nil
}

// markFailed marks jobs that never finish as failed. Kubernetes then ends those without a pod.
func (m *Reconciler) markFailed(ctx context.Context, key string, jobs []objects.JobStatus) error {
	namespace, _ := splitKey(key)
	for _, job := range jobs {
		released, err := m.JobClient.Release(ctx, namespace, job, m.Clock.Now())
		if err != nil {
			return err
		}
		if released == nil {
			m.removed(job.UID)
			continue
		}
		m.add(released)
		klog.FromContext(ctx).V(2).Info("Marked maintenance job as failed", "repository", key, "job", job.Name)
	}
	return nil
}

func (m *Reconciler) remove(ctx context.Context, key string, jobs []objects.JobStatus) error {
	namespace, _ := splitKey(key)
	for _, job := range jobs {
		if err := m.JobClient.Remove(ctx, namespace, job); err != nil {
			return err
		}
		m.removed(job.UID)
		klog.FromContext(ctx).V(2).Info("Deleted maintenance job", "repository", key, "job", job.Name)
	}
	m.Enqueue(key) // the next step does not wait for the event
	return nil
}

// write adds a run to the history of a repository. It returns false if the repository changed since it was read; the
// event of that change enqueues it. Velero's server may have written the run already, or truncated the history that
// contained it.
func (m *Reconciler) write(ctx context.Context, key string, object *velerov1.BackupRepository, run maintenance.Run) (bool, error) {
	before := maintenance.From(object)
	after := before.With(run)
	if reflect.DeepEqual(before, after) {
		return true, nil
	}
	changed := object.DeepCopy()
	after.ApplyTo(changed)
	patch, err := writes.MergePatch(object, changed)
	if err != nil {
		return false, fmt.Errorf("create patch of BackupRepository %s: %w", key, err)
	}
	written, err := m.Client.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: writes.FieldManager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("write history of BackupRepository %s: %w", key, err)
	}
	m.overlay.Record(key, written)
	m.show(written)
	return true, nil
}
