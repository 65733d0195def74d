package repository

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Kubernetes marks a job finished about a second after its pod has terminated.
func TestAJobWhosePodHasTerminatedLeavesItsPlace(t *testing.T) {
	f := newFixture(t)
	f.Limit = 1
	first, second := f.repository("r1"), f.repository("r2")
	f.pass(2 * time.Hour)
	f.settle(first)
	job := f.Jobs.List()[0]
	f.pod(job, corev1.PodStatus{Phase: corev1.PodRunning})
	f.settle(second)
	younger := f.repository("r0")
	f.repositories[younger].Status.LastMaintenanceTime = new(metav1.NewTime(f.clock.Now().Add(-90 * time.Minute)))
	f.settle(younger)
	require.Len(t, f.names(), 1)

	clear(f.enqueued)
	f.TerminalPod(f.pod(job, corev1.PodStatus{Phase: corev1.PodSucceeded}))
	require.Equal(t, map[string]bool{second: true}, f.enqueued, "as many as there are places, the oldest first")
	clear(f.enqueued)
	f.Job(job)
	require.Equal(t, map[string]bool{first: true, second: true}, f.enqueued, "its end may free the place too")
	f.settle(second)
	require.Len(t, f.names(), 2)
	f.settle(first)
	require.Len(t, f.names(), 2, "a repository has one unfinished job at most")
}

func TestAJobWhoseFailedPodIsReplacedKeepsItsPlace(t *testing.T) {
	f := newFixture(t)
	f.Limit = 1
	f.repository("r1")
	job := f.job("of-another", "r1", func(job *batchv1.Job) { job.Spec.BackoffLimit, job.Status.Failed = new(int32(1)), 1 })
	f.pod(job, corev1.PodStatus{Phase: corev1.PodFailed})
	second := f.repository("r2")
	f.pass(2 * time.Hour)
	f.settle(second)
	require.Len(t, f.names(), 1)
}
