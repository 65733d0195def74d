package integration

import (
	"context"
	"sync"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// mostAtOnce follows objects until their watch ends. It returns the most that were active at once, in all and of one repository.
func mostAtOnce[T metav1.Object](changes watch.Interface, active func(T) bool) (most, mostOfOne int) {
	names := map[string]map[string]bool{} // by repository
	for change := range changes.ResultChan() {
		object, ok := change.Object.(T)
		if !ok {
			return most, mostOfOne
		}
		repository := object.GetLabels()[api.LabelRepository]
		if names[repository] == nil {
			names[repository] = map[string]bool{}
		}
		delete(names[repository], object.GetName())
		if change.Type != watch.Deleted && active(object) {
			names[repository][object.GetName()] = true
		}
		all := 0
		for _, own := range names {
			all += len(own)
			mostOfOne = max(mostOfOne, len(own))
		}
		most = max(most, all)
	}
	return most, mostOfOne
}

// watchJobs follows the maintenance jobs of an environment and their pods. Call the result at the end: it returns how many pods
// worked at once at most, and how many jobs of one repository were unfinished.
func (s *env) watchJobs() (seen func() (mostPods, mostOfOne int)) {
	ctx, stop := context.WithCancel(s.Context())
	s.Cleanup(stop)
	pods, err := s.Kube.CoreV1().Pods(s.Namespace).Watch(ctx, ofRepositories)
	require.NoError(s, err)
	jobs, err := s.Kube.BatchV1().Jobs(s.Namespace).Watch(ctx, ofRepositories)
	require.NoError(s, err)
	var mostPods, mostOfOne int
	var following sync.WaitGroup
	following.Go(func() {
		mostPods, _ = mostAtOnce(pods, func(pod *corev1.Pod) bool {
			return pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
		})
	})
	following.Go(func() {
		_, mostOfOne = mostAtOnce(jobs, func(job *batchv1.Job) bool { return objects.ReadJob(job).Outcome == objects.JobUnfinished })
	})
	return func() (int, int) {
		stop()
		following.Wait()
		return mostPods, mostOfOne
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
