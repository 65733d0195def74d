package integration

import (
	"context"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// jobsAtOnce follows the maintenance jobs of an environment until the context ends. It returns the most that were
// unfinished at once, in all and of one repository.
func (s *env) jobsAtOnce(ctx context.Context, jobs watch.Interface) (most, mostOfOne int) {
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
			repository := job.Labels[api.LabelRepository]
			if unfinished[repository] == nil {
				unfinished[repository] = map[string]bool{}
			}
			if change.Type == watch.Deleted || objects.ReadJob(job).Outcome != objects.JobUnfinished {
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

// watchJobs follows the maintenance jobs of an environment. What it returns is called in the end, and returns the most that were
// unfinished at once, in all and of one repository.
func (s *env) watchJobs() (seen func() (most, mostOfOne int)) {
	ctx, stop := context.WithCancel(s.Context())
	s.Cleanup(stop)
	jobs, err := s.Kube.BatchV1().Jobs(s.Namespace).Watch(ctx, ofRepositories)
	require.NoError(s, err)
	var most, mostOfOne int
	counted := make(chan struct{})
	go func() {
		defer close(counted)
		most, mostOfOne = s.jobsAtOnce(ctx, jobs)
	}()
	return func() (int, int) {
		stop()
		<-counted
		return most, mostOfOne
	}
}

// coordinator waits until an agent coordinates that is not the one given, and returns its name.
func (s *env) coordinator(before string) string {
	return s.coordinatorIs(func(holder string) bool { return holder != "" && holder != before })
}

// haveLeft waits until there are so many jobs: one that was given up is written down first, and then deleted.
func (s *env) haveLeft(jobs int) {
	watcher, err := s.Kube.BatchV1().Jobs(s.Namespace).Watch(s.soon(), ofRepositories)
	require.NoError(s, err)
	defer watcher.Stop()
	for len(s.jobs()) != jobs {
		_, open := <-watcher.ResultChan()
		require.True(s, open, "there are not %d jobs", jobs)
	}
}
