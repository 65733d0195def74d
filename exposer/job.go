package exposer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/exposer/priority"
)

// Jobs makes and removes maintenance jobs, and asks what became of them.
type Jobs struct {
	Client kubernetes.Interface
}

// ErrAlreadyMaintained tells that a repository has a job that has not ended, whoever made it.
var ErrAlreadyMaintained = errors.New("the repository has an unfinished maintenance job")

// Start makes a job, or takes the one that another coordinator has made in its place. It is a HopelessError if
// the API server calls the job invalid (422), and ErrAlreadyMaintained if there is an unfinished one that the
// caches do not know yet.
func (j Jobs) Start(ctx context.Context, job *batchv1.Job) (*batchv1.Job, error) {
	jobs := j.Client.BatchV1().Jobs(job.Namespace)
	same := metav1.ListOptions{LabelSelector: objects.LabelRepository + "=" + job.Labels[objects.LabelRepository]}
	found, err := jobs.List(ctx, same)
	if err != nil {
		return nil, fmt.Errorf("list maintenance jobs: %w", err)
	}
	for i := range found.Items {
		if objects.ReadJob(&found.Items[i]).Outcome == objects.JobUnfinished {
			return nil, ErrAlreadyMaintained
		}
	}
	created, err := jobs.Create(ctx, job, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return created, wrapCreate("create maintenance job "+job.Name, err)
	}
	have, err := jobs.Get(ctx, job.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get maintenance job %s: %w", job.Name, err)
	}
	if have.Annotations[objects.AnnotationRepositoryUID] != job.Annotations[objects.AnnotationRepositoryUID] {
		return nil, fmt.Errorf("job %s/%s exists and belongs to something else; delete it to let the repository be maintained", have.Namespace, have.Name)
	}
	return have, nil
}

// Remove deletes this very job and then its pods. A job that is gone is no error.
func (j Jobs) Remove(ctx context.Context, namespace string, job objects.JobStatus) error {
	options := metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &job.UID},
		PropagationPolicy: new(metav1.DeletePropagationBackground),
	}
	err := j.Client.BatchV1().Jobs(namespace).Delete(ctx, job.Name, options)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete maintenance job %s: %w", job.Name, err)
	}
	return nil
}

// Release has a job that will not end count as failed. Velero's server, which waits for any job of a repository in its
// only worker, would wait for ever for one that is gone. It needs the right to patch jobs/status; where there is none, an
// error would keep the repository from maintenance, so that the job is removed at once. It returns the job as it is then;
// nil if it is gone.
func (j Jobs) Release(ctx context.Context, namespace string, job objects.JobStatus, now time.Time) (*batchv1.Job, error) {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%q}},"status":{"failed":1}}`,
		job.UID, objects.AnnotationReleased, now.UTC().Format(time.RFC3339))
	released, err := j.Client.BatchV1().Jobs(namespace).Patch(ctx, job.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsForbidden(err):
		return nil, j.Remove(ctx, namespace, job)
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("release maintenance job %s: %w", job.Name, err)
	}
	return released, nil
}

// Record writes on a job what became of it. It needs the right to patch jobs/status, and is a Forbidden error without it. A
// job that is gone is no error.
func (j Jobs) Record(ctx context.Context, namespace string, job objects.JobStatus, record objects.JobRecord) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": job.UID, "annotations": record.Annotations()}})
	if err != nil {
		return fmt.Errorf("encode record of maintenance job %s: %w", job.Name, err)
	}
	_, err = j.Client.BatchV1().Jobs(namespace).Patch(ctx, job.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("record maintenance job %s: %w", job.Name, err)
	}
	return nil
}

// Failure is why a job failed, as a code and in words.
func (j Jobs) Failure(ctx context.Context, namespace string, job objects.JobStatus) (objects.Verdict, string, error) {
	pods, err := j.pods(ctx, namespace, job)
	if err != nil {
		return "", "", err
	}
	verdict, message := objects.JobFailure(job, pods)
	return verdict, message, nil
}

// Stuck is why a job that has been in its stage for too long cannot get on; stuck is false if it did after all.
func (j Jobs) Stuck(ctx context.Context, namespace string, job objects.JobStatus) (why string, stuck bool, err error) {
	if job.Stage() == objects.StageRunning {
		return "it took longer than --repo-maintenance-timeout; raise that if it needs longer", true, nil
	}
	pods, err := j.pods(ctx, namespace, job)
	if err != nil {
		return "", false, err
	}
	if job.Stage() == objects.StagePending {
		why, stuck = objects.JobPending(pods)
		if stuck && why == "" {
			why, err = j.warning(ctx, namespace, pods[0].UID)
		}
		return "its pod did not start: " + cmp.Or(why, "no Event says why"), stuck, err
	}
	if len(pods) > 0 {
		return "", false, nil
	}
	why, err = j.warning(ctx, namespace, job.UID)
	return "its job had no pod: " + cmp.Or(why, "no Event says why"), true, err
}

// warning is the newest Warning about an object; empty if there is none.
func (j Jobs) warning(ctx context.Context, namespace string, about types.UID) (string, error) {
	events, err := j.Client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(about)).String(),
	})
	if err != nil {
		return "", fmt.Errorf("list events of a maintenance job: %w", err)
	}
	var newest corev1.Event
	for _, event := range events.Items {
		if event.Type == corev1.EventTypeWarning && !last(&event).Before(last(&newest)) {
			newest = event
		}
	}
	return newest.Message, nil
}

// pods are those of one job: a name may be used again, a UID is not.
func (j Jobs) pods(ctx context.Context, namespace string, job objects.JobStatus) ([]corev1.Pod, error) {
	pods, err := j.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: batchv1.ControllerUidLabel + "=" + string(job.UID),
	})
	if err != nil {
		return nil, fmt.Errorf("list pods of maintenance job %s: %w", job.Name, err)
	}
	return pods.Items, nil
}

// ClassGone tells whether the priority class of a job does not exist at this moment. Where nobody may ask, it is not
// known to be gone; the job of somebody else may have a class all the same.
func (j Jobs) ClassGone(ctx context.Context, job objects.JobStatus) (bool, error) {
	deleted, err := priority.MissingNow(ctx, job.Class, func(ctx context.Context, name string) (*schedulingv1.PriorityClass, error) {
		return j.Client.SchedulingV1().PriorityClasses().Get(ctx, name, metav1.GetOptions{})
	})
	if apierrors.IsForbidden(err) {
		return false, nil
	}
	return deleted, err
}
