package repository

import (
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/maintenance"
)

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
		return 0, r.recordRuns(ctx, key, object, never, record, terminal.Error())
	case err != nil:
		if !errors.Is(err, errUnanswered) && !r.state(key).createFailed {
			r.update(key, func(state *repositoryState) { state.createFailed = true })
			r.Recorder.Eventf(referenceTo(object), corev1.EventTypeWarning, EventSkipped, "Maintenance job cannot be created, retrying: %v", err)
		}
		return 0, err
	}
	r.update(key, func(state *repositoryState) { state.createFailed = false })
	r.wroteJob(created)
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
	created, err := r.JobClient.Start(ctx, objects.Job(objects.Maintenance{
		Name: object.Name, Namespace: object.Namespace, UID: object.UID,
		VolumeNamespace: object.Spec.VolumeNamespace, Location: object.Spec.BackupStorageLocation, Type: object.Spec.RepositoryType,
		Due: step.Due, Failures: step.Failures, Factor: step.Factor, Timeout: r.Policy.Timeout,
	}, plan.Template, plan.Settings))
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
