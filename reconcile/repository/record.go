package repository

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

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
			r.deletedJob(job.UID)
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
		case apierrors.IsForbidden(err): // this process still remembers it
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
	r.update(key, func(state *repositoryState) {
		state.failures = 0
		if record.Verdict.Failed() {
			state.failures = record.Failures + 1
		}
	})
	r.reportRun(ctx, object, why, job.Outcome == objects.JobSucceeded, job.Finished.Sub(job.Created))
	r.Enqueue(key) // the next step does not wait for the event
	return nil
}

// markFailed marks jobs that never finish as failed. Kubernetes then ends those without a pod.
func (r *Reconciler) markFailed(ctx context.Context, key string, jobs []objects.JobStatus) error {
	namespace, _ := splitKey(key)
	for _, job := range jobs {
		released, err := r.JobClient.Release(ctx, namespace, job, r.Clock.Now())
		if err != nil {
			return err
		}
		if released == nil {
			r.deletedJob(job.UID)
			continue
		}
		r.wroteJob(released)
		klog.FromContext(ctx).V(2).Info("Marked maintenance job as failed", "repository", key, "job", job.Name)
	}
	return nil
}

// delete deletes jobs.
func (r *Reconciler) delete(ctx context.Context, key string, jobs []objects.JobStatus) error {
	namespace, _ := splitKey(key)
	for _, job := range jobs {
		if err := r.JobClient.Remove(ctx, namespace, job); err != nil {
			return err
		}
		r.deletedJob(job.UID)
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
	r.written.Record(key, written)
	r.exportAge(written)
	return true, nil
}

// splitKey splits the key of an object into namespace and name.
func splitKey(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}
