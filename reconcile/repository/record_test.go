package repository

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/metrics"
)

// TestAnEndedJobIsCountedOnceDespiteAShortHistory runs beside two servers of Velero. A release keeps 3 entries
// and replaces messages; the development branch keeps 25.
func TestAnEndedJobIsCountedOnceDespiteAShortHistory(t *testing.T) {
	for _, entries := range []int{3, 25} {
		t.Run(fmt.Sprint(entries, " entries"), func(t *testing.T) {
			m, registry := newFixture(t), prometheus.NewRegistry()
			m.Metrics = metrics.New(registry, "test", "node-1").Maintenance()
			m.Plan = func(context.Context, *velerov1.BackupRepository) (JobPlan, error) {
				return JobPlan{Settings: objects.JobSettings{Keep: 5}, Created: func(*batchv1.Job) {}}, nil
			}
			key := m.repository("r1")
			for i := range 5 {
				job := m.run(key, m.outOfMemory)
				read, err := m.client.BatchV1().Jobs("velero").Get(t.Context(), job, metav1.GetOptions{})
				require.NoError(t, err)
				require.Equal(t, objects.JobRecord{Verdict: objects.VerdictOutOfMemory, Failures: i, Factor: []float64{1, 1.5, 2.25, 3.375, 4}[i]}, objects.ReadJob(read).JobRecord)
				m.resync(key, entries)
			}
			require.Len(t, m.names(), 5)
			patches := m.patches
			next := m.successor()
			for range 2 {
				m.resync(key, entries)
				require.Equal(t, m.settle(key), next.settle(key))
			}
			require.Equal(t, patches, m.patches+next.patches, "nothing is written down again")
			require.InDelta(t, 5, counted(t, registry, "velero_repo_maintenance_failure_total"), 0)
			require.Equal(t, 80*time.Minute, next.settle(key), "the back-off continues")
		})
	}
}

func TestARejectedRecordOfAChangedRepositoryIsNoError(t *testing.T) {
	for _, reject := range []func(schema.GroupResource, string) error{
		func(resource schema.GroupResource, name string) error {
			return apierrors.NewConflict(resource, name, errors.New("it has changed"))
		},
		func(resource schema.GroupResource, name string) error { return apierrors.NewNotFound(resource, name) },
	} {
		m := newFixture(t)
		key := m.repository("r1")
		m.rejection = reject(velerov1.SchemeGroupVersion.WithResource("backuprepositories").GroupResource(), "r1")
		m.run(key, m.end(batchv1.JobComplete))
		require.NoError(t, m.rejection, "it was not written")
		require.Zero(t, m.patches)
		m.settle(key) // the event of the change
		require.Equal(t, 1, m.patches)
	}
}

// staleJobs is a cache that is behind the API server.
type staleJobs []*batchv1.Job

func (j staleJobs) List() []*batchv1.Job { return j }

// TestAJobIsCountedOnceByACoordinatorWithAStaleCache has the next coordinator observe a job before its record.
func TestAJobIsCountedOnceByACoordinatorWithAStaleCache(t *testing.T) {
	rejections := map[string]func(schema.GroupResource, string) error{
		"recorded": func(resource schema.GroupResource, name string) error {
			return apierrors.NewConflict(resource, name, errors.New("it has changed"))
		},
		"deleted": func(resource schema.GroupResource, name string) error { return apierrors.NewNotFound(resource, name) },
	}
	for name, rejection := range rejections {
		t.Run(name, func(t *testing.T) {
			m, registry := newFixture(t), prometheus.NewRegistry()
			m.Metrics = metrics.New(registry, "test", "node-1").Maintenance()
			key := m.repository("r1")
			var stale staleJobs
			m.run(key, func(job *batchv1.Job) {
				m.end(batchv1.JobComplete)(job)
				job.ResourceVersion = "1"
				stale = staleJobs{job.DeepCopy()}
			})
			next := m.successor()
			next.Jobs = stale
			next.client.PrependReactor("patch", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
				patch := action.(clienttesting.PatchAction)
				require.Contains(t, string(patch.GetPatch()), `"resourceVersion":"1"`)
				return true, nil, rejection(schema.GroupResource{Group: "batch", Resource: "jobs"}, patch.GetName())
			})
			next.settle(key)
			require.InDelta(t, 1, counted(t, registry, "velero_repo_maintenance_success_total"), 0)
			next.Jobs = m.Jobs
			next.settle(key)
			require.InDelta(t, 1, counted(t, registry, "velero_repo_maintenance_success_total"), 0)
		})
	}
}

// TestWithoutTheRightToRecordAJobItIsCountedOnceByAProcess forbids patch on jobs/status.
func TestWithoutTheRightToRecordAJobItIsCountedOnceByAProcess(t *testing.T) {
	m, registry := newFixture(t), prometheus.NewRegistry()
	m.Metrics = metrics.New(registry, "test", "node-1").Maintenance()
	m.client.PrependReactor("patch", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: "jobs"}, "j1", nil)
	})
	key := m.repository("r1")
	for range 2 {
		m.run(key, m.end(batchv1.JobComplete))
	}
	m.settle(key)
	require.InDelta(t, 2, counted(t, registry, "velero_repo_maintenance_success_total"), 0)
	require.Len(t, m.names(), 2)
}

// TestRejectedStartsBackOffWithAHistoryOfThree has no job that could record the number of failures.
