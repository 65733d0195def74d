package repository

import (
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/maintenance"
)

// jobsByLabel holds maintenance jobs by the value of api.LabelRepository.
type jobsByLabel map[string][]objects.JobStatus

// jobState is what this process knows of a job beyond its caches.
type jobState struct {
	// stage was first observed at since, by the clock of this process. The API server and Kubernetes' controllers write
	// timestamps by other clocks.
	stage   objects.JobStage
	since   time.Time
	record  objects.JobRecord // of a recorded job, even if the job itself could not be written
	deleted bool              // by this process
}

// jobs returns all jobs as this process knows them: its own writes and deletions count before the cache has them.
func (r *Reconciler) jobs() jobsByLabel {
	jobs, states := jobsByLabel{}, map[types.UID]jobState{}
	for _, job := range r.writtenJobs.All(r.Jobs.List(), func(job *batchv1.Job) string { return string(job.UID) }) {
		status, state := objects.ReadJob(job), r.observed[job.UID]
		status.Deleting = status.Deleting || state.deleted
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

// wroteJob keeps a job that this process created or updated.
func (r *Reconciler) wroteJob(job *batchv1.Job) { r.writtenJobs.Record(string(job.UID), job) }

// deletedJob records that a job was deleted. The cache may still show it.
func (r *Reconciler) deletedJob(uid types.UID) {
	r.writtenJobs.Forget(string(uid))
	state := r.observed[uid]
	state.deleted = true
	r.observed[uid] = state
}

// running counts the jobs that work. A job whose last pod has terminated does not, although Kubernetes marks it finished
// about a second later. A job without a pod counts only while a step ends it: if it has a repository, whose next job waits
// for its end, or if its repository was deleted, after which it is released.
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
			if working && (job.HasPod || maintained[label] || !exists[label]) {
				n++
			}
		}
	}
	return n
}
