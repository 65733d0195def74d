package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/informers"
)

// frequent has repositories maintained far more often than they ask for, so that Velero's server, which goes by what
// they ask for, never is the first.
func frequent(options *config.Options) {
	options.MaintenanceConcurrency, options.MaintenanceFrequency, options.MaintenanceTimeout = 1, 5*time.Second, time.Minute
}

func TestARepositoryIsMaintainedBesideTheServerAndRestoresAllTheSame(t *testing.T) {
	s := newSite(t, "velero", frequent)
	saved, before := s.backUp(t)
	maintained := s.maintainedSince(t, saved.Status.CompletionTimestamp.Time)
	for _, run := range maintained.Status.RecentMaintenance {
		require.Equal(t, velerov1.BackupRepositoryMaintenanceSucceeded, run.Result, run.Message)
	}
	jobs, err := s.Kube.BatchV1().Jobs(s.Namespace).List(s.ctx, metav1.ListOptions{})
	require.NoError(t, err)
	require.NotEmpty(t, jobs.Items)
	for _, job := range jobs.Items {
		require.True(t, ofRepository(&job, maintained), "job %s is not of Lateen", job.Name)
	}
	s.restore(t, saved, before)
}

// maintainedSince waits for a run that began after a time and has ended.
func (s *site) maintainedSince(t *testing.T, since time.Time) *velerov1.BackupRepository {
	t.Helper()
	velero, err := informers.NewVelero(s.plane.Admin())
	require.NoError(t, err)
	watcher, err := velero.BackupRepositories(s.Namespace).Watch(s.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + s.repository.Name})
	require.NoError(t, err)
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		repository, ok := event.Object.(*velerov1.BackupRepository)
		require.True(t, ok, "%v", event)
		if runs := repository.Status.RecentMaintenance; len(runs) > 0 && runs[len(runs)-1].StartTimestamp.After(since) {
			return repository
		}
	}
	require.Fail(t, "the repository was not maintained")
	return nil
}

// ofRepository tells whether a repository owns a job: those of Velero's server have no owner.
func ofRepository(job *batchv1.Job, repository *velerov1.BackupRepository) bool {
	owner := metav1.GetControllerOf(job)
	return owner != nil && owner.UID == repository.UID
}
