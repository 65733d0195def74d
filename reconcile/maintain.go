package reconcile

import (
	"context"
	"fmt"
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
	"github.com/lateen-project/lateen/exposer/build"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/maintenance"
)

// Maintainer keeps backup repositories maintained, for one term of a coordinator. It waits for no job: events
// of jobs bring it on, so that one repository never holds up another. It is for one worker.
type Maintainer struct {
	Repositories MaintainedCache
	Locations    interface {
		Get(key string) (*velerov1.BackupStorageLocation, bool)
	}
	Jobs interface {
		List() []*batchv1.Job // maintenance jobs of the namespace, whoever made them
	}
	Client Patcher[*velerov1.BackupRepository]
	Exec   exposer.Jobs
	// Plan says what the next job of a repository is made of, read afresh. An error is: not now.
	Plan func(ctx context.Context, repository *velerov1.BackupRepository) (JobPlan, error)
	Wake func(key string)

	Policy  maintenance.Policy
	Limit   int           // unfinished jobs in the cluster
	Timeout time.Duration // of a job

	Recorder record.EventRecorder
	Metrics  *metrics.Maintenance
	Clock    clock.PassiveClock

	memory memory[*velerov1.BackupRepository]
	lock   sync.Mutex
	wrote  map[types.UID]*batchv1.Job    // jobs that we made or changed, until the cache has them like that
	gone   sets.Set[types.UID]           // jobs that were removed, until the cache has them no more
	states map[string]maintenance.Reason // by key: what was last said to hinder it
	held   map[string]time.Time          // keys that wait for room, and since when they are due
	stuck  map[string]bool               // keys whose job could not be made; they keep no other from its turn
}

// MaintainedCache are all BackupRepositories.
type MaintainedCache interface {
	Get(key string) (*velerov1.BackupRepository, bool)
	List() []*velerov1.BackupRepository
}

// JobPlan is what a job is made of.
type JobPlan struct {
	Template build.JobTemplate
	Settings build.JobSettings
	Made     func() // to be called once there is a job like this
}

// Reconcile brings one repository a step further.
func (m *Maintainer) Reconcile(ctx context.Context, key string) (time.Duration, error) {
	object, exists := m.Repositories.Get(key)
	if !exists {
		m.forget(key)
		return m.reconcileOrphans(ctx, key)
	}
	object = m.memory.newest(key, object)
	jobs := m.jobs()
	step := m.next(object, jobs)
	m.note(ctx, key, object, step)
	switch step.Action {
	case maintenance.Wait:
		return step.After, nil
	case maintenance.Record:
		return 0, m.record(ctx, key, object, step.Jobs)
	case maintenance.Abandon:
		return m.abandon(ctx, key, object, step.Jobs)
	case maintenance.Release:
		return 0, m.letGo(ctx, key, step.Jobs)
	case maintenance.Delete:
		return 0, m.remove(ctx, key, step.Jobs)
	case maintenance.Start:
		defer m.load()
		return 0, m.start(ctx, key, object, step, jobs)
	}
	return 0, nil
}

// reconcileOrphans brings the jobs of a repository that does not exist a step further. The key has the repository's name,
// or the value of the label that its jobs have.
func (m *Maintainer) reconcileOrphans(ctx context.Context, key string) (time.Duration, error) {
	_, name := splitKey(key)
	step := maintenance.WithoutRepository(m.jobs()[build.RepositoryLabel(name)], m.Policy, m.Clock.Now())
	switch step.Action {
	case maintenance.Release:
		return 0, m.letGo(ctx, key, step.Jobs)
	case maintenance.Delete:
		return 0, m.remove(ctx, key, step.Jobs)
	case maintenance.Wait, maintenance.Record, maintenance.Abandon, maintenance.Start:
	}
	return step.After, nil
}

func (m *Maintainer) next(object *velerov1.BackupRepository, jobs jobsByLabel) maintenance.Step {
	location, exists := m.Locations.Get(object.Namespace + "/" + object.Spec.BackupStorageLocation)
	where := maintenance.Location{Exists: exists}
	if exists {
		where.ReadOnly = location.Spec.AccessMode == velerov1.BackupStorageLocationAccessModeReadOnly
	}
	return maintenance.Next(maintenance.Of(object), jobs[build.RepositoryLabel(object.Name)], where, m.Policy, m.Clock.Now())
}

// record writes down what became of jobs that have ended.
func (m *Maintainer) record(ctx context.Context, key string, object *velerov1.BackupRepository, jobs []build.JobSeen) error {
	reasons := make([]string, len(jobs))
	for i, job := range jobs {
		if job.Outcome != build.JobFailed {
			continue
		}
		var err error
		if reasons[i], err = m.Exec.Failure(ctx, object.Namespace, job); err != nil {
			return err
		}
	}
	return m.conclude(ctx, key, object, jobs, reasons)
}

// abandon writes down that a job has no pod, and why; it is removed when that is done.
func (m *Maintainer) abandon(ctx context.Context, key string, object *velerov1.BackupRepository, jobs []build.JobSeen) (time.Duration, error) {
	reasons := make([]string, len(jobs))
	for i, job := range jobs {
		why, lacks, err := m.Exec.NoPod(ctx, object.Namespace, job)
		if err != nil {
			return 0, err
		}
		if !lacks {
			return m.Policy.PodWait, nil // the job controller has yet to write that it made the pod
		}
		gone, err := m.Exec.ClassGone(ctx, job)
		if err != nil {
			return 0, err
		}
		if gone {
			why = maintenance.ClassGone + job.Class
		}
		reasons[i], jobs[i].Ended = why, m.Clock.Now()
	}
	return 0, m.conclude(ctx, key, object, jobs, reasons)
}

// conclude writes down the runs of jobs, and counts and tells of them once that is done.
func (m *Maintainer) conclude(ctx context.Context, key string, object *velerov1.BackupRepository, jobs []build.JobSeen, reasons []string) error {
	var runs []maintenance.Run
	for i, job := range jobs {
		runs = append(runs, maintenance.RunOf(job, reasons[i]))
	}
	written, err := m.write(ctx, key, object, runs)
	if err != nil || !written {
		return err
	}
	for i, job := range jobs {
		m.ended(ctx, object, reasons[i], job.Outcome == build.JobSucceeded, job.Ended.Sub(job.Created))
	}
	return nil
}

// letGo has jobs that will not end count as failed; Kubernetes then ends those that have no pod.
func (m *Maintainer) letGo(ctx context.Context, key string, jobs []build.JobSeen) error {
	namespace, _ := splitKey(key)
	for _, job := range jobs {
		released, err := m.Exec.Release(ctx, namespace, job, m.Clock.Now())
		if err != nil {
			return err
		}
		if released == nil {
			m.removed(job.UID)
			continue
		}
		m.add(released)
		klog.FromContext(ctx).V(2).Info("Had a maintenance job count as failed", "repository", key, "job", job.Name)
	}
	return nil
}

func (m *Maintainer) remove(ctx context.Context, key string, jobs []build.JobSeen) error {
	namespace, _ := splitKey(key)
	for _, job := range jobs {
		if err := m.Exec.Remove(ctx, namespace, job); err != nil {
			return err
		}
		m.removed(job.UID)
		klog.FromContext(ctx).V(2).Info("Removed a maintenance job", "repository", key, "job", job.Name)
	}
	m.Wake(key) // what comes next does not wait for the event
	return nil
}

// write puts runs into the history of a repository, if nobody has changed it since it was read; else the change
// wakes us.
func (m *Maintainer) write(ctx context.Context, key string, object *velerov1.BackupRepository, runs []maintenance.Run) (bool, error) {
	changed := object.DeepCopy()
	maintenance.Of(object).With(runs...).Set(changed)
	patch, err := mergePatch(object, changed)
	if err != nil {
		return false, fmt.Errorf("make patch of backup repository %s: %w", key, err)
	}
	written, err := m.Client.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("write history of backup repository %s: %w", key, err)
	}
	m.memory.wrote(key, written)
	m.Metrics.Known(object.Name, maintenance.Of(written).Last)
	m.Wake(key) // what comes next does not wait for the event
	return true, nil
}
