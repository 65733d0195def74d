package repository

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/reconcile/writes"
)

// record records the result of a finished job.
func (r *Reconciler) record(ctx context.Context, key string, object *velerov1.BackupRepository, step maintenance.Step) error {
	job, verdict, why := step.Jobs[0], objects.VerdictSucceeded, ""
	if job.Outcome == objects.JobFailed {
		var err error
		if verdict, why, err = r.JobClient.Failure(ctx, object.Namespace, job); err != nil {
			return err
		}
	}
	return r.recordRuns(ctx, key, object, job, objects.JobRecord{Verdict: verdict, Failures: step.Failures, Factor: step.Factor}, why)
}

// classGone is the start of the message of a run that had no pod because its PriorityClass does not exist.
const classGone = "PriorityClass of its job does not exist: "

// abandon records that a job cannot make progress, and why. The next step marks the job failed.
func (r *Reconciler) abandon(ctx context.Context, key string, object *velerov1.BackupRepository, step maintenance.Step) (time.Duration, error) {
	job, record := step.Jobs[0], objects.JobRecord{Verdict: objects.VerdictFailed, Failures: step.Failures, Factor: step.Factor}
	why, stuck, err := r.JobClient.Stuck(ctx, object.Namespace, job)
	if err != nil {
		return 0, err
	}
	if !stuck {
		return r.Policy.PodWait, nil // not written by the job controller yet, or another container is not ready
	}
	if job.Stage() == objects.StageNoPod {
		if exists, err := r.JobClient.Exists(ctx, object.Namespace, job); err != nil {
			return 0, err
		} else if !exists { // it was deleted before the watch showed it
			r.deletedJob(object.Namespace, job)
			r.Enqueue(key)
			return 0, nil
		}
		classDeleted, err := r.JobClient.ClassGone(ctx, job)
		if err != nil {
			return 0, err
		}
		if classDeleted {
			record.Verdict, why = objects.VerdictClassMissing, classGone+job.Class
		}
	}
	return 0, r.recordRuns(ctx, key, object, job, record, why)
}

// recordRuns writes the run of a job to the repository's history, then to the job itself, and then counts it. A
// recorded job is never counted twice, whatever happens to the history: the coordinator whose record the API server
// accepts counts it. A job that could not be created has no UID.
func (r *Reconciler) recordRuns(ctx context.Context, key string, object *velerov1.BackupRepository, job objects.JobStatus, record objects.JobRecord, why string) error {
	written, err := r.writeHistory(ctx, key, object, maintenance.RunOf(job, why))
	if err != nil || !written {
		return err
	}
	if job.UID != "" {
		recorded, err := r.JobClient.Record(ctx, object.Namespace, job, record)
		switch {
		case apierrors.IsForbidden(err): // this process still remembers it; the next coordinator counts it again
			klog.FromContext(ctx).Error(err, "Failed to record result of maintenance job", "repository", key, "job", job.Name)
		case err != nil:
			return err
		case !recorded:
			return nil // the event of its deletion enqueues the repository
		}
		state := r.observed[job.UID]
		state.record = record
		r.observed[job.UID] = state
	}
	job.JobRecord = record
	r.update(key, func(state *repositoryState) { state.failures, state.factor = maintenance.CountsAfter(job) })
	r.reportRun(ctx, object, why, job.Outcome == objects.JobSucceeded, job.Finished.Sub(job.Created))
	r.Enqueue(key) // the next step does not wait for the event
	return nil
}

// markFailed marks jobs that never finish as failed. Kubernetes then ends those without a pod.
func (r *Reconciler) markFailed(ctx context.Context, key string, jobs []objects.JobStatus) error {
	namespace, _, _ := strings.Cut(key, "/")
	for _, job := range jobs {
		released, err := r.JobClient.Release(ctx, namespace, job, r.Clock.Now())
		if err != nil {
			return err
		}
		if released == nil {
			r.deletedJob(namespace, job)
			continue
		}
		r.Jobs.Record(released)
		klog.FromContext(ctx).V(2).Info("Marked maintenance job as failed", "repository", key, "job", job.Name)
	}
	return nil
}

// delete deletes jobs.
func (r *Reconciler) delete(ctx context.Context, key string, jobs []objects.JobStatus) error {
	namespace, _, _ := strings.Cut(key, "/")
	for _, job := range jobs {
		if err := r.JobClient.Remove(ctx, namespace, job); err != nil {
			return err
		}
		r.deletedJob(namespace, job)
		klog.FromContext(ctx).V(2).Info("Deleted maintenance job", "repository", key, "job", job.Name)
	}
	r.Enqueue(key) // the next step does not wait for the event
	return nil
}

// writeHistory adds a run to the history of a repository. It returns false if the repository was deleted; that event
// enqueues it. Velero's server may have written the run already, or truncated the history that contained it.
func (r *Reconciler) writeHistory(ctx context.Context, key string, object *velerov1.BackupRepository, run maintenance.Run) (bool, error) {
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
	written, err := r.Client.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: writes.FieldManager})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("write history of BackupRepository %s: %w", key, err)
	}
	r.Repositories.Record(written)
	r.exportAge(written)
	return true, nil
}

// Reasons of the Kubernetes Events on backup repositories.
const (
	EventMaintained    = "MaintenanceSucceeded"
	EventNotMaintained = "MaintenanceFailed"
	EventSkipped       = "MaintenanceSkipped"
)

// report updates the metrics of a repository and reports a changed reason why it is not maintained.
func (r *Reconciler) report(ctx context.Context, key string, object *velerov1.BackupRepository, step maintenance.Step) {
	switch step.Reason {
	case maintenance.NotKopia, maintenance.ReadOnly, maintenance.Deleting:
		r.Metrics.Excluded(object.Name)
	case maintenance.NotReady, maintenance.NoLocation, maintenance.AlreadyRunning, "":
		r.exportAge(object)
	}
	changed := r.state(key).reported != step.Reason
	r.update(key, func(state *repositoryState) {
		state.reported = step.Reason
		if step.Action != maintenance.Start {
			state.place = place{}
		}
	})
	if !changed {
		return
	}
	r.enqueueQueued() // it may have been due before, and not in the queue
	klog.FromContext(ctx).V(2).Info("Maintenance is waiting", "repository", key, "reason", step.Reason)
	switch step.Reason {
	case maintenance.ReadOnly:
		r.Recorder.Eventf(ReferenceTo(object), corev1.EventTypeNormal, EventSkipped, "Maintenance skipped: BackupStorageLocation %s is read-only", object.Spec.BackupStorageLocation)
	case maintenance.NoLocation:
		r.Recorder.Eventf(ReferenceTo(object), corev1.EventTypeWarning, EventSkipped, "Maintenance skipped: BackupStorageLocation %s does not exist. Create it, or delete this repository", object.Spec.BackupStorageLocation)
	case maintenance.NotKopia, maintenance.NotReady, maintenance.Deleting, maintenance.AlreadyRunning:
	}
}

// exportAge exports when a repository was last maintained, and its maintenance frequency.
func (r *Reconciler) exportAge(object *velerov1.BackupRepository) {
	repository := maintenance.From(object)
	r.Metrics.Observe(object.Name, repository.Last, r.Policy.IntervalOf(repository))
}

// exportLoad exports the number of running jobs, and of due repositories without a job.
func (r *Reconciler) exportLoad() {
	running := r.running(r.jobs())
	r.lock.Lock()
	defer r.lock.Unlock()
	due := 0
	for _, state := range r.states {
		if state.queued || state.createFailed {
			due++
		}
	}
	r.Metrics.Load(running, due)
}

// reportRun reports a run to metrics, log and Events.
func (r *Reconciler) reportRun(ctx context.Context, object *velerov1.BackupRepository, why string, succeeded bool, took time.Duration) {
	r.Metrics.Ended(object.Name, succeeded, took)
	logger := klog.FromContext(ctx)
	if !succeeded {
		logger.Error(nil, "Maintenance failed", "repository", klog.KObj(object), "took", took, "message", why)
		r.Recorder.Eventf(ReferenceTo(object), corev1.EventTypeWarning, EventNotMaintained, "Maintenance failed after %s: %s", took.Round(time.Second), why)
		return
	}
	logger.Info("Maintenance succeeded", "repository", klog.KObj(object), "took", took)
	r.Recorder.Eventf(ReferenceTo(object), corev1.EventTypeNormal, EventMaintained, "Maintenance succeeded in %s", took.Round(time.Second))
}

// ReferenceTo returns the object reference for Events. Cached objects do not have their kind set.
func ReferenceTo(object *velerov1.BackupRepository) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "BackupRepository",
		Namespace: object.Namespace, Name: object.Name, UID: object.UID,
	}
}

// jobsByLabel holds maintenance jobs by the value of api.LabelRepository.
type jobsByLabel map[string][]objects.JobStatus

// jobState is what this process knows of a job beyond its caches.
type jobState struct {
	// stage was first observed at since, by the clock of this process. The API server and Kubernetes' controllers write
	// timestamps by other clocks.
	stage  objects.JobStage
	since  time.Time
	record objects.JobRecord // of a recorded job, even if the job itself could not be written
}

// jobs returns all jobs as this process knows them.
func (r *Reconciler) jobs() jobsByLabel {
	jobs, states := jobsByLabel{}, map[types.UID]jobState{}
	for _, job := range r.Jobs.List() {
		status, state := objects.ReadJob(job), r.observed[job.UID]
		if state.record.Verdict != "" {
			status.JobRecord = state.record
		}
		if stage := status.Stage(); state.since.IsZero() || state.stage != stage {
			state.stage, state.since = stage, r.Clock.Now()
		}
		status.Since = state.since
		states[job.UID] = state
		label := job.Labels[api.LabelRepository]
		jobs[label] = append(jobs[label], status)
	}
	r.observed = states
	return jobs
}

// deletedJob records that a job was deleted. The cache may still show it.
func (r *Reconciler) deletedJob(namespace string, job objects.JobStatus) {
	r.Jobs.RecordDeletion(namespace+"/"+job.Name, job.UID)
}

// running counts the jobs that work. A job whose last pod has terminated does not, although Kubernetes marks it finished
// about a second later. A job without a pod counts only while a step ends it: if it has a repository, whose next job waits
// for its end, or if its repository was deleted, after which it is released. No step ends one that is suspended or being deleted.
func (r *Reconciler) running(jobs jobsByLabel) int {
	maintained, exists := map[string]bool{}, map[string]bool{}
	for _, object := range r.Repositories.List() {
		observed, label := maintenance.From(object), objects.RepositoryLabel(object.Name)
		maintained[label], exists[label] = observed.Kopia && !observed.Deleting, true
	}
	terminated := map[types.UID]int{}
	for _, pod := range r.TerminalPods.List() {
		terminated[types.UID(pod.Labels[batchv1.ControllerUidLabel])]++
	}
	n := 0
	for label, own := range jobs {
		for _, job := range own {
			working := job.Outcome == objects.JobUnfinished && terminated[job.UID] <= job.Retries
			if working && (job.HasPod || !job.Suspended && !job.Deleting && (maintained[label] || !exists[label])) {
				n++
			}
		}
	}
	return n
}
