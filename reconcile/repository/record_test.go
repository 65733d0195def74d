package repository

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/objects"
)

// TestAnEndedJobIsCountedOnceDespiteAShortHistory runs beside two servers of Velero. A release keeps 3 entries
// and replaces messages; the development branch keeps 25.
func TestAnEndedJobIsCountedOnceDespiteAShortHistory(t *testing.T) {
	for _, entries := range []int{3, 25} {
		t.Run(fmt.Sprint(entries, " entries"), func(t *testing.T) {
			f := newFixture(t)
			f.Plan = func(context.Context, *velerov1.BackupRepository) (JobPlan, error) {
				return JobPlan{Settings: objects.JobSettings{Keep: 5}, Created: func(*batchv1.Job) {}}, nil
			}
			key := f.repository("r1")
			for i := range 5 {
				job := f.run(key, f.outOfMemory)
				require.Equal(t, objects.JobRecord{Verdict: objects.VerdictOutOfMemory, Failures: i, Factor: []float64{1, 1.5, 2.25, 3.375, 4}[i]}, objects.ReadJob(f.read(job)).JobRecord)
				f.resync(key, entries)
			}
			require.Len(t, f.names(), 5)
			patches := f.patches
			next := f.successor()
			for range 2 {
				f.resync(key, entries)
				require.Equal(t, f.settle(key), next.settle(key))
			}
			require.Equal(t, patches, f.patches+next.patches, "nothing is written down again")
			require.Equal(t, map[string]float64{"velero_repo_maintenance_failure_total r1": 5}, f.values("velero_repo_maintenance_failure_total"))
			require.Equal(t, 80*time.Minute, next.settle(key), "the back-off continues")
		})
	}
}

// rejections are the answers to a write to an object that was changed or deleted.
func rejections(resource schema.GroupResource, name string) map[string]error {
	return map[string]error{
		"changed": apierrors.NewConflict(resource, name, errors.New("it has changed")), "deleted": apierrors.NewNotFound(resource, name),
	}
}

func TestARejectedRecordOfAChangedRepositoryIsNoError(t *testing.T) {
	for _, rejection := range rejections(velerov1.Resource("backuprepositories"), "r1") {
		f := newFixture(t)
		key := f.repository("r1")
		f.rejection = rejection
		f.run(key, f.end(batchv1.JobComplete))
		require.NoError(t, f.rejection, "it was not written")
		require.Zero(t, f.patches)
		f.settle(key) // the event of the change
		require.Equal(t, 1, f.patches)
	}
}

// staleJobs is a cache that is behind the API server.
type staleJobs []*batchv1.Job

func (s staleJobs) List() []*batchv1.Job { return s }

// TestAJobIsCountedOnceByACoordinatorWithAStaleCache has the next coordinator observe a job before its record.
func TestAJobIsCountedOnceByACoordinatorWithAStaleCache(t *testing.T) {
	for name, rejection := range rejections(batchv1.Resource("jobs"), "job") {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			key := f.repository("r1")
			var stale staleJobs
			f.run(key, func(job *batchv1.Job) {
				f.end(batchv1.JobComplete)(job)
				job.ResourceVersion = "1"
				stale = staleJobs{job.DeepCopy()}
			})
			next := f.successor()
			next.Jobs = stale
			next.client.PrependReactor("patch", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
				patch := action.(clienttesting.PatchAction)
				require.Contains(t, string(patch.GetPatch()), `"resourceVersion":"1"`)
				return true, nil, rejection
			})
			next.settle(key)
			require.Equal(t, map[string]float64{"velero_repo_maintenance_success_total r1": 1}, f.values("velero_repo_maintenance_success_total"))
			next.Jobs = f.Jobs
			next.settle(key)
			require.Equal(t, map[string]float64{"velero_repo_maintenance_success_total r1": 1}, f.values("velero_repo_maintenance_success_total"))
		})
	}
}

// TestWithoutTheRightToRecordAJobItIsCountedOnceByAProcess forbids patch on jobs/status.
func TestWithoutTheRightToRecordAJobItIsCountedOnceByAProcess(t *testing.T) {
	f := newFixture(t)
	f.client.PrependReactor("patch", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: "jobs"}, "j1", nil)
	})
	key := f.repository("r1")
	for range 2 {
		f.run(key, f.end(batchv1.JobComplete))
	}
	f.settle(key)
	require.Equal(t, map[string]float64{"velero_repo_maintenance_success_total r1": 2}, f.values("velero_repo_maintenance_success_total"))
	require.Len(t, f.names(), 2)
}

// TestRejectedStartsBackOffWithAHistoryOfThree has no job that could record the number of failures.
