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
	m := newFixture(t)
	m.Limit = 1
	first, second := m.repository("r1"), m.repository("r2")
	m.clock.SetTime(m.clock.Now().Add(2 * time.Hour))
	m.settle(first)
	job := m.Jobs.List()[0]
	m.pod(job, corev1.PodRunning)
	m.settle(second)
	younger := m.repository("r0")
	m.repositories[younger].Status.LastMaintenanceTime = new(metav1.NewTime(m.clock.Now().Add(-90 * time.Minute)))
	m.settle(younger)
	require.Len(t, m.names(), 1)

	clear(m.enqueued)
	m.TerminalPod(m.pod(job, corev1.PodSucceeded))
	require.Equal(t, map[string]bool{second: true}, m.enqueued, "as many as there are places, the oldest first")
	m.settle(second)
	require.Len(t, m.names(), 2)
	m.settle(first)
	require.Len(t, m.names(), 2, "a repository has one unfinished job at most")
}

func TestAJobWhoseFailedPodIsReplacedKeepsItsPlace(t *testing.T) {
	m := newFixture(t)
	m.Limit = 1
	m.repository("r1")
	job := m.job("of-another", "r1", func(job *batchv1.Job) { job.Spec.BackoffLimit, job.Status.Failed = new(int32(1)), 1 })
	m.pod(job, corev1.PodFailed)
	second := m.repository("r2")
	m.clock.SetTime(m.clock.Now().Add(2 * time.Hour))
	m.settle(second)
	require.Len(t, m.names(), 1)
}
