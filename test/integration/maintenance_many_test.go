package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/exposer/build"
	"github.com/lateen-project/lateen/test/node"
)

// jobsAtOnce follows the maintenance jobs of a site until the context ends. It returns the most that were
// unfinished at once, in all and of one repository.
func (s *site) jobsAtOnce(ctx context.Context, jobs watch.Interface) (most, mostOfOne int) {
	unfinished := map[string]map[string]bool{} // names by repository
	for {
		select {
		case <-ctx.Done():
			return most, mostOfOne
		case change, open := <-jobs.ResultChan():
			job, ok := change.Object.(*batchv1.Job)
			if !open || !ok {
				return most, mostOfOne
			}
			repository := job.Labels[build.LabelRepository]
			if unfinished[repository] == nil {
				unfinished[repository] = map[string]bool{}
			}
			if change.Type == watch.Deleted || build.ReadJob(job).Outcome != build.JobUnfinished {
				delete(unfinished[repository], job.Name)
			} else {
				unfinished[repository][job.Name] = true
			}
			all := 0
			for _, own := range unfinished {
				all += len(own)
				mostOfOne = max(mostOfOne, len(own))
			}
			most = max(most, all)
		}
	}
}

// TestManyRepositoriesTakeTurns has the coordinator end in the middle, with jobs that run on without one.
func TestManyRepositoriesTakeTurns(t *testing.T) {
	const repositories = 16
	s := newSite(t, time.Millisecond)
	s.retries = true // the same configuration is read for each job
	s.configureJobs("")
	s.jobsEnd(node.Result{}, 0)
	s.configure(`{}`)
	watching, stop := context.WithCancel(t.Context())
	jobs, err := s.Kube.BatchV1().Jobs(s.Namespace).Watch(watching, metav1.ListOptions{LabelSelector: build.LabelRepository})
	require.NoError(t, err)
	counted := make(chan struct{})
	var most, mostOfOne int
	go func() {
		defer close(counted)
		most, mostOfOne = s.jobsAtOnce(watching, jobs)
	}()
	var names []string
	for i := range repositories {
		names = append(names, s.repository(fmt.Sprintf("app-default-kopia-%05d", i), func(r *velerov1.BackupRepository) {
			r.Status.LastMaintenanceTime = new(metav1.NewTime(time.Now().Add(-time.Duration(100-i) * time.Hour)))
		}))
	}
	first := s.start(maintains)
	s.maintained(names[0], ran(1))
	first.stop()
	second := s.start(maintains)
	for _, name := range names {
		s.maintained(name, ran(1))
	}
	for _, name := range names {
		repository := s.maintained(name, ran(1))
		require.Len(t, repository.Status.RecentMaintenance, 1, name)
		require.Equal(t, velerov1.BackupRepositoryMaintenanceSucceeded, repository.Status.RecentMaintenance[0].Result)
	}
	stop()
	<-counted
	require.LessOrEqual(t, most, 3)
	require.Equal(t, 1, mostOfOne)
	require.Len(t, s.jobs(), repositories, "no repository was maintained twice")
	require.Zero(t, second.metric("lateen_maintenance_due"))
}

// TestARunThatEndedWithoutACoordinatorIsWrittenDown adopts the job of a Velero server.
func TestARunThatEndedWithoutACoordinatorIsWrittenDown(t *testing.T) {
	s := newSite(t, time.Millisecond)
	s.configureJobs("")
	s.jobsEnd(node.Result{}, 0)
	s.configure(`{}`)
	name := s.repository("app-default-kopia-x7k2p")
	s.serverJob(name, "", s.node.Name())
	theirs := s.job(func(job *batchv1.Job) bool { return build.ReadJob(job).Outcome == build.JobSucceeded })
	s.start(maintains)
	after := s.maintained(name, ran(1))
	require.True(t, theirs.Status.CompletionTime.Equal(after.Status.LastMaintenanceTime))
	require.Len(t, s.jobs(), 1, "what the server has done is not done again")
}
