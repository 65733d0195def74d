package exposer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// Jobs creates and deletes maintenance jobs, and reads their results.
type Jobs struct {
	Client kubernetes.Interface
}

// ErrAlreadyMaintained reports that a repository has an unfinished job, Lateen's or Velero's.
var ErrAlreadyMaintained = errors.New("the repository has an unfinished maintenance job")

// Start creates a job, or returns the same job if another coordinator created it first. It returns a TerminalError
// if the API server calls the job invalid (422). It returns ErrAlreadyMaintained if an unfinished job exists that
// the caches do not have yet. It creates the claim of the job's cache volume first, unless it exists; nil for none.
func (j Jobs) Start(ctx context.Context, job *batchv1.Job, cache *corev1.PersistentVolumeClaim) (*batchv1.Job, error) {
	jobs := j.Client.BatchV1().Jobs(job.Namespace)
	same := metav1.ListOptions{LabelSelector: api.LabelRepository + "=" + job.Labels[api.LabelRepository]}
	found, err := jobs.List(ctx, same)
	if err != nil {
		return nil, fmt.Errorf("list maintenance jobs: %w", err)
	}
	for i := range found.Items {
		if objects.ReadJob(&found.Items[i]).Outcome == objects.JobUnfinished {
			return nil, ErrAlreadyMaintained
		}
	}
	if err := j.ensureCache(ctx, cache); err != nil {
		return nil, err
	}
	created, err := jobs.Create(ctx, job, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return created, wrapCreate("create maintenance job "+job.Name, err)
	}
	have, err := jobs.Get(ctx, job.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get maintenance job %s: %w", job.Name, err)
	}
	if have.Annotations[api.AnnotationRepositoryUID] != job.Annotations[api.AnnotationRepositoryUID] {
		return nil, fmt.Errorf("job %s/%s exists but has another owner; delete it to unblock maintenance", have.Namespace, have.Name)
	}
	return have, nil
}

func (j Jobs) ensureCache(ctx context.Context, cache *corev1.PersistentVolumeClaim) error {
	if cache == nil {
		return nil
	}
	claims := j.Client.CoreV1().PersistentVolumeClaims(cache.Namespace)
	_, exists := claims.Create(ctx, cache, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(exists) {
		return wrapCreate("create claim "+cache.Name+" of the maintenance cache", exists)
	}
	have, err := claims.Get(ctx, cache.Name, metav1.GetOptions{})
	switch {
	case err != nil:
		return fmt.Errorf("get claim %s: %w", cache.Name, err)
	case have.DeletionTimestamp != nil:
		return errors.Join(fmt.Errorf("claim %s/%s of the maintenance cache is being deleted: %w", have.Namespace, have.Name, exists), j.letGo(ctx, cache))
	case len(have.OwnerReferences) != 1 || have.OwnerReferences[0].UID != cache.OwnerReferences[0].UID:
		return fmt.Errorf("claim %s/%s has another owner; delete it to unblock maintenance: %w", have.Namespace, have.Name, exists)
	}
	return nil
}

// letGo deletes the pods of finished jobs, for which Kubernetes keeps a deleted claim. No other job is there when Start calls it.
func (j Jobs) letGo(ctx context.Context, cache *corev1.PersistentVolumeClaim) error {
	pods := j.Client.CoreV1().Pods(cache.Namespace)
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: api.LabelRepository + "=" + cache.Labels[api.LabelRepository]})
	if err != nil {
		return fmt.Errorf("list pods of the maintenance cache: %w", err)
	}
	var failed error
	for _, pod := range list.Items {
		if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			continue
		}
		if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))}); !apierrors.IsNotFound(err) {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// Remove deletes this job, not a recreated one, and then its pods. A missing job is no error. A conflict is one: the name
// may belong to another job.
func (j Jobs) Remove(ctx context.Context, namespace string, job objects.JobStatus) error {
	options := metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &job.UID},
		PropagationPolicy: new(metav1.DeletePropagationBackground),
	}
	err := j.Client.BatchV1().Jobs(namespace).Delete(ctx, job.Name, options)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete maintenance job %s: %w", job.Name, err)
	}
	return nil
}

// Release marks an unfinished job as failed. The only worker of Velero's server waits for every job of a
// repository; it would wait for a deleted one for ever. Release needs permission to patch jobs/status. Without it,
// an error would block maintenance, so the job is deleted at once. It returns the patched job; nil if the job is
// deleted.
func (j Jobs) Release(ctx context.Context, namespace string, job objects.JobStatus, now time.Time) (*batchv1.Job, error) {
	patch := fmt.Sprintf(`{"metadata":{"uid":%q,"annotations":{%q:%q}},"status":{"failed":1}}`,
		job.UID, api.AnnotationReleased, now.UTC().Format(time.RFC3339))
	released, err := j.Client.BatchV1().Jobs(namespace).Patch(ctx, job.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsForbidden(err):
		return nil, j.Remove(ctx, namespace, job)
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("mark maintenance job %s as failed: %w", job.Name, err)
	}
	return released, nil
}

// Record writes the result of a job into its annotations. It reports false if the job is deleted: its result may be
// recorded already. The same holds if the job has changed since it was read, which is a Conflict error. It needs
// permission to patch jobs/status, and returns a Forbidden error without it.
func (j Jobs) Record(ctx context.Context, namespace string, job objects.JobStatus, record objects.JobRecord) (bool, error) {
	_, err := mergePatch(ctx, j.Client.BatchV1().Jobs(namespace), job.Name, map[string]any{"metadata": map[string]any{
		"uid": job.UID, "resourceVersion": job.Version, "annotations": record.Annotations(),
	}}, "status")
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("record maintenance job %s: %w", job.Name, err)
	}
	return true, nil
}

// Exists reports whether the API server has this job, not a recreated one.
func (j Jobs) Exists(ctx context.Context, namespace string, job objects.JobStatus) (bool, error) {
	found, err := j.Client.BatchV1().Jobs(namespace).Get(ctx, job.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("get maintenance job %s: %w", job.Name, err)
	}
	return found.UID == job.UID, nil
}

// Failure returns why a job failed, as a code and as a message.
func (j Jobs) Failure(ctx context.Context, namespace string, job objects.JobStatus) (objects.Verdict, string, error) {
	pods, err := j.pods(ctx, namespace, job)
	if err != nil {
		return "", "", err
	}
	verdict, message := objects.JobFailure(job, pods)
	return verdict, message, nil
}

// Stuck returns why a job that exceeds the limit of its stage makes no progress. stuck is false if the job did make
// progress.
func (j Jobs) Stuck(ctx context.Context, namespace string, job objects.JobStatus) (why string, stuck bool, err error) {
	if job.Stage() == objects.StageRunning {
		return "it exceeded --repo-maintenance-timeout; raise the timeout if maintenance needs longer", true, nil
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
		return "pod did not start: " + cmp.Or(why, "no Event gives a reason"), stuck, err
	}
	if len(pods) > 0 {
		return "", false, nil
	}
	why, err = j.warning(ctx, namespace, job.UID)
	return "job has no pod: " + cmp.Or(why, "no Event gives a reason"), true, err
}

// warning returns the message of the newest Warning about an object; empty if there is none.
func (j Jobs) warning(ctx context.Context, namespace string, about types.UID) (string, error) {
	newest, err := newestWarning(ctx, j.Client, namespace, about, "")
	if err != nil {
		return "", fmt.Errorf("diagnose maintenance job: %w", err)
	}
	return newest.Message, nil
}

// pods returns the pods of one job. It selects by UID, because names are reused.
func (j Jobs) pods(ctx context.Context, namespace string, job objects.JobStatus) ([]corev1.Pod, error) {
	pods, err := j.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: batchv1.ControllerUidLabel + "=" + string(job.UID),
	})
	if err != nil {
		return nil, fmt.Errorf("list pods of maintenance job %s: %w", job.Name, err)
	}
	return pods.Items, nil
}

// ClassGone reports whether the priority class of a job does not exist at this moment. Without permission to read
// classes it returns false.
func (j Jobs) ClassGone(ctx context.Context, job objects.JobStatus) (bool, error) {
	if job.Class == "" {
		return false, nil
	}
	_, err := j.Client.SchedulingV1().PriorityClasses().Get(ctx, job.Class, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err == nil || apierrors.IsForbidden(err):
		return false, nil
	}
	return false, fmt.Errorf("get priority class %s: %w", job.Class, err)
}
