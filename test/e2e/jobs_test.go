package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/testenv"
)

// lookInterval is how often the log of Velero's server is read: only there it says that it waits.
const lookInterval = 500 * time.Millisecond

// asks has a repository ask for maintenance so often, by the patch of docs/maintenance.md. Velero's server looks at what is
// changed in this way at once.
func (e *env) asks(t *testing.T, repository *velerov1.BackupRepository, frequency string) {
	t.Helper()
	e.patch(t, repository, map[string]any{"spec": map[string]any{"maintenanceFrequency": frequency}})
}

// overdue has a repository's last maintenance be long ago. Velero's server does not look at what is changed in this way.
func (e *env) overdue(t *testing.T, repository *velerov1.BackupRepository) {
	t.Helper()
	e.patch(t, repository, map[string]any{"status": map[string]any{"lastMaintenanceTime": metav1.NewTime(time.Now().Add(-48 * time.Hour))}})
}

func (e *env) patch(t *testing.T, repository *velerov1.BackupRepository, change map[string]any) {
	t.Helper()
	patch, err := json.Marshal(change)
	require.NoError(t, err)
	_, err = e.Repositories().Patch(e.ctx, repository.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
}

// until waits for a repository to be as wanted.
func (e *env) until(t *testing.T, repository *velerov1.BackupRepository, wanted func(*velerov1.BackupRepository) bool) *velerov1.BackupRepository {
	t.Helper()
	found, err := testenv.Wait(e.ctx, e.Repositories(), testenv.Named(repository.Name), wanted)
	require.NoError(t, err)
	return found
}

// looked returns when Velero's server has handled all earlier requests: it has one worker for all repositories,
// which has made this new one Ready.
func (e *env) looked(t *testing.T, volumeNamespace string) *velerov1.BackupRepository {
	t.Helper()
	repository, err := e.Repository(e.ctx, volumeNamespace)
	require.NoError(t, err)
	return repository
}

// serverWaits returns when Velero's server waits for a job of the repository. It is made to look again and again: its
// cache may hear of the job later than we do.
func (m *maintained) serverWaits(t *testing.T, job *batchv1.Job) {
	t.Helper()
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for hours := 73; ; hours++ {
		m.asks(t, m.repository, fmt.Sprintf("%dh", hours))
		select {
		case <-m.ctx.Done():
			require.Failf(t, "Velero's server does not wait for a job", "%s", job.Name)
		case <-tick.C:
		}
		log, err := os.ReadFile(m.server.Log())
		require.NoError(t, err)
		if strings.Contains(string(log), "Waiting for maintenance job "+job.Name) {
			return
		}
	}
}

// dependent makes an object that a repository owns. What is returned waits until the garbage collector has deleted it,
// and with it all else that the repository owned.
func (e *env) dependent(t *testing.T, repository *velerov1.BackupRepository) (collected func()) {
	t.Helper()
	configMaps := e.Kube.CoreV1().ConfigMaps(e.Namespace)
	owned := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owned", OwnerReferences: []metav1.OwnerReference{{
		APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "BackupRepository", Name: repository.Name, UID: repository.UID,
	}}}}
	_, err := configMaps.Create(e.ctx, owned, metav1.CreateOptions{})
	require.NoError(t, err)
	return func() {
		require.NoError(t, testenv.WaitGone(e.ctx, configMaps, testenv.Named("owned")), "the garbage collector does not work")
	}
}

// jobs are the maintenance jobs of a cluster, from now on.
type jobs struct {
	watch.Interface
	unfinished map[string]string // by repository: the job that has not ended
	seen       map[string]*batchv1.Job
}

func (e *env) followJobs(t *testing.T) *jobs {
	t.Helper()
	watcher, err := e.Kube.BatchV1().Jobs(e.Namespace).Watch(e.ctx, metav1.ListOptions{LabelSelector: api.LabelRepository})
	require.NoError(t, err)
	t.Cleanup(watcher.Stop)
	return &jobs{Interface: watcher, unfinished: map[string]string{}, seen: map[string]*batchv1.Job{}}
}

// until waits for a job to be as wanted; one that was deleted has a deletionTimestamp. No repository has two that have not ended at any time before.
func (j *jobs) until(t *testing.T, wanted func(*batchv1.Job) bool) *batchv1.Job {
	t.Helper()
	for event := range j.ResultChan() {
		job, ok := event.Object.(*batchv1.Job)
		require.True(t, ok, "%v", event)
		repository := job.Labels[api.LabelRepository]
		if event.Type == watch.Deleted && job.DeletionTimestamp == nil {
			job.DeletionTimestamp = new(metav1.Now())
		}
		finished := event.Type == watch.Deleted || objects.ReadJob(job).Outcome != objects.JobUnfinished
		switch other := j.unfinished[repository]; {
		case finished && other == job.Name:
			delete(j.unfinished, repository)
		case !finished:
			require.Contains(t, []string{"", job.Name}, other, "repository %s has a second job", repository)
			j.unfinished[repository] = job.Name
		}
		j.seen[job.Name] = job
		if wanted(job) {
			return job
		}
	}
	require.Fail(t, "no such job")
	return nil
}

// recorded is of how many jobs the agent has written down what became of them.
func (j *jobs) recorded() (n int) {
	for _, job := range j.seen {
		if objects.ReadJob(job).Verdict != "" {
			n++
		}
	}
	return n
}

// jobsOf are the jobs that a repository has now.
func (e *env) jobsOf(t *testing.T, repository *velerov1.BackupRepository) []batchv1.Job {
	t.Helper()
	same := metav1.ListOptions{LabelSelector: api.LabelRepository + "=" + objects.RepositoryLabel(repository.Name)}
	list, err := e.Kube.BatchV1().Jobs(e.Namespace).List(e.ctx, same)
	require.NoError(t, err)
	return list.Items
}

// untilGone waits for a job to be deleted.
func (j *jobs) untilGone(t *testing.T, deleted *batchv1.Job) {
	t.Helper()
	for event := range j.ResultChan() {
		if job, ok := event.Object.(*batchv1.Job); ok && job.UID == deleted.UID && event.Type == watch.Deleted {
			return
		}
	}
	require.Failf(t, "the job is still there", "%s", deleted.Name)
}

// ofLateen reports whether Lateen has created a job.
func ofLateen(job *batchv1.Job) bool { return job.Annotations[api.AnnotationRepositoryUID] != "" }

// maintains reports whether a job is one of a repository.
func maintains(job *batchv1.Job, repository *velerov1.BackupRepository) bool {
	return job.Labels[api.LabelRepository] == objects.RepositoryLabel(repository.Name)
}

// has reports whether a repository remembers a job as a success.
func has(repository *velerov1.BackupRepository, job *batchv1.Job) bool {
	for _, run := range repository.Status.RecentMaintenance {
		if run.StartTimestamp.Equal(&job.CreationTimestamp) && run.Result == velerov1.BackupRepositoryMaintenanceSucceeded {
			return true
		}
	}
	return false
}
