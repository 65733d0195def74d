package repository

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/maintenance"
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
		_, err := f.Reconcile(t.Context(), key) // the event of the change
		require.NoError(t, err)
		require.Equal(t, 1, f.patches)
		last := "lateen_maintenance_last_success_timestamp_seconds"
		require.Equal(t, map[string]float64{last + " r1": float64(f.clock.Now().Unix())}, f.values(last))
	}
}

// staleJobs is a cache that gets no events.
type staleJobs struct{ cached, written []*batchv1.Job }

func (s *staleJobs) List() []*batchv1.Job { return slices.Concat(s.written, s.cached) }

func (s *staleJobs) Record(written *batchv1.Job) {
	s.cached = slices.DeleteFunc(s.cached, func(job *batchv1.Job) bool { return job.UID == written.UID })
	s.written = append(s.written, written)
}

func (s *staleJobs) RecordDeletion(_ string, uid types.UID) {
	s.written = slices.DeleteFunc(s.written, func(job *batchv1.Job) bool { return job.UID == uid })
	for _, job := range s.cached {
		if job.UID == uid {
			job.DeletionTimestamp = &metav1.Time{}
		}
	}
}

// TestAJobIsCountedOnceByACoordinatorWithAStaleCache has the next coordinator observe a job before its record.
func TestAJobIsCountedOnceByACoordinatorWithAStaleCache(t *testing.T) {
	for name, rejection := range rejections(batchv1.Resource("jobs"), "job") {
		f := newFixture(t)
		key := f.repository("r1")
		stale := &staleJobs{}
		f.run(key, func(job *batchv1.Job) {
			f.end(batchv1.JobComplete)(job)
			job.ResourceVersion = "1"
			stale.cached = []*batchv1.Job{job.DeepCopy()}
		})
		next := f.successor()
		next.Jobs = stale
		next.client.PrependReactor("patch", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
			patch := action.(clienttesting.PatchAction)
			require.Contains(t, string(patch.GetPatch()), `"resourceVersion":"1"`)
			return true, nil, rejection
		})
		require.Equal(t, name == "changed", next.settle(key) > 0, "a conflict is no event")
		require.Equal(t, map[string]float64{"velero_repo_maintenance_success_total r1": 1}, f.values("velero_repo_maintenance_success_total"))
		next.Jobs = f.Jobs
		next.settle(key)
		require.Equal(t, map[string]float64{"velero_repo_maintenance_success_total r1": 1}, f.values("velero_repo_maintenance_success_total"))
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

// The API server refuses the first write of each verb, although the job has not changed. So no event follows.
func TestARequestIsSentAgainAfterAConflictWithoutAnEvent(t *testing.T) {
	f, refused := newFixture(t), map[string]bool{"create": true, "get": true, "list": true}
	key := f.repository("r1")
	for i := range maintenance.DefaultKeep + 1 {
		f.job(fmt.Sprint("j", i), "r1", f.end(batchv1.JobComplete))
	}
	f.client.PrependReactor("*", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
		done := refused[action.GetVerb()]
		refused[action.GetVerb()] = true
		return !done, nil, apierrors.NewConflict(batchv1.Resource("jobs"), "job", errors.New("try again"))
	})
	for end := f.clock.Now().Add(time.Minute); f.clock.Now().Before(end); {
		next := f.settle(key)
		require.Positive(t, next)
		f.pass(next)
	}
	require.True(t, refused["patch"] && refused["delete"])
	require.Len(t, f.names(), maintenance.DefaultKeep)
	for _, job := range f.Jobs.List() {
		require.Equal(t, objects.VerdictSucceeded, objects.ReadJob(job).Verdict)
	}
}

// Lateen ends no job of a repository that is not Kopia's: without a pod, it could hold a place for ever.
func TestAPodlessJobThatNoStepEndsHoldsNoPlace(t *testing.T) {
	f := newFixture(t)
	f.Limit = 1
	restic, suspended, queued, deleting := f.repository("r1"), f.repository("r2"), f.repository("r3"), f.repository("r4")
	f.repositories[restic].Spec.RepositoryType, f.repositories[deleting].DeletionTimestamp = "restic", &metav1.Time{}
	f.job("theirs", "r1", func(job *batchv1.Job) { job.Status.Active = 1 })
	f.job("last", "r4")
	f.job("deleted", "r2", func(job *batchv1.Job) { job.DeletionTimestamp = new(metav1.NewTime(f.clock.Now())) })
	f.job("suspended", "r2", func(job *batchv1.Job) { job.Spec.Suspend = new(true) })
	f.pass(2 * time.Hour)
	f.settle(restic)
	f.settle(suspended)
	f.settle(queued)
	require.Len(t, f.names(), 4, "a job with a pod holds its place")
	f.change("theirs", func(job *batchv1.Job) { job.Status.Active = 0 })
	f.settle(queued)
	require.Len(t, f.names(), 5)
}

// TestADeletedRepositoryHoldsItsPlaceUntilItsJobEnds deletes a repository before its job has a pod, which it soon gets.
func TestADeletedRepositoryHoldsItsPlaceUntilItsJobEnds(t *testing.T) {
	f := newFixture(t)
	f.Limit = 1
	deleted, queued := f.repository("r1"), f.repository("r2")
	f.pass(2 * time.Hour)
	f.settle(deleted)
	delete(f.repositories, deleted)
	f.settle(queued)
	require.Len(t, f.names(), 1)
	require.Equal(t, f.Policy.PodWait, f.settle(deleted))
	f.pass(f.Policy.PodWait)
	f.settle(deleted)
	f.change(f.names()[0], f.end(batchv1.JobFailed)) // it was released
	f.settle(queued)
	require.Len(t, f.names(), 2)
}

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
	require.True(t, f.enqueued[younger], "it is next")
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

func TestAJobThatIsDeletedBeforeItIsCachedIsFollowedByAnother(t *testing.T) {
	f := newFixture(t)
	key := f.repository("r1")
	f.Jobs = &staleJobs{}
	f.pass(2 * time.Hour)
	require.Equal(t, f.Policy.PodWait, f.settle(key))
	f.remove(f.names()[0])
	f.pass(f.Policy.PodWait)
	f.settle(key)
	f.Jobs = fixtureJobs{f}
	require.Len(t, f.names(), 1)
	require.Zero(t, f.patches, "nothing is recorded of a job that another client deleted")
}

func TestALateCacheStartsNoSecondJob(t *testing.T) {
	f := newFixture(t)
	key := f.repository("r1")
	f.Repositories = fixtureRepositories{&fixture{repositories: maps.Clone(f.repositories)}}
	f.run(key, f.end(batchv1.JobComplete))
	require.Greater(t, f.settle(key), 50*time.Minute)
	require.Len(t, f.names(), 1)
	require.Equal(t, 1, f.patches)
}

// The answer of a webhook that denies a request may lack a reason.
func TestARepositoryThatDoesNotTakeItsTurnWakesTheNext(t *testing.T) {
	created := func(err error) func(*fixture, string) {
		return func(f *fixture, _ string) {
			f.client.PrependReactor("create", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return strings.HasPrefix(action.(clienttesting.CreateAction).GetObject().(*batchv1.Job).Name, "r1"), nil, err
			})
		}
	}
	notReady := func(f *fixture, first string) {
		f.repositories[first].Status.Phase = velerov1.BackupRepositoryPhaseNotReady
	}
	dueLater := func(f *fixture, first string) {
		f.repositories[first].Spec.MaintenanceFrequency.Duration = 90 * time.Minute
	}
	queued := func(then func(*fixture, string)) func(*fixture, string) {
		return func(f *fixture, first string) {
			f.Limit = 0
			f.settle(first)
			f.Limit = 1
			then(f, first)
		}
	}
	for name, change := range map[string]func(f *fixture, first string){
		"a webhook denies its job": created(&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadRequest, Message: "denied"}}),
		"its job is invalid":       created(apierrors.NewInvalid(schema.GroupKind{Kind: "Job"}, "r1", field.ErrorList{field.Required(field.NewPath("spec"), "")})),
		"it is deleted":            func(f *fixture, first string) { delete(f.repositories, first) },
		"it is not Ready":          notReady,
		"it is no longer Ready":    queued(notReady),
		"it is due later":          queued(dueLater),
	} {
		f := newFixture(t)
		f.Limit, f.Policy.MaxJitter = 1, 0 // all are due at the same time: their names decide
		first, second, third := f.repository("r1"), f.repository("r2"), f.repository("r3")
		f.pass(2 * time.Hour)
		f.settle(second)
		f.settle(third)
		change(f, first)
		clear(f.enqueued)
		_, err := f.Reconcile(t.Context(), first)
		require.Equal(t, apierrors.IsBadRequest(err), err != nil, name)
		require.True(t, f.enqueued[second], name)
		f.settle(second)
		require.Len(t, f.names(), 1, name)
	}
}

func TestARepositoryIsDueUntilItsJobIsCreated(t *testing.T) {
	f, denied := newFixture(t), false
	f.client.PrependReactor("create", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return denied, nil, apierrors.NewBadRequest("denied")
	})
	key := f.repository("r1")
	f.pass(2 * time.Hour)
	for _, denied = range []bool{true, false} {
		next, err := f.Reconcile(t.Context(), key)
		require.Equal(t, denied, next == 0 && apierrors.IsBadRequest(err))
		require.Equal(t, map[string]float64{"lateen_maintenance_due": map[bool]float64{true: 1}[denied]}, f.values("lateen_maintenance_due"))
	}
}

func TestAJobThatNoCacheHasKeepsItsPlace(t *testing.T) {
	for _, lost := range []error{nil, errors.New("unexpected EOF")} {
		f := newFixture(t)
		f.Limit, f.Jobs = 1, &staleJobs{}
		first, second := f.repository("r1"), f.repository("r2")
		f.pass(2 * time.Hour)
		f.client.PrependReactor("create", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if lost != nil {
				require.NoError(t, f.client.Tracker().Create(action.GetResource(), action.(clienttesting.CreateAction).GetObject(), "velero"))
			}
			return lost != nil, nil, lost
		})
		_, err := f.Reconcile(t.Context(), first)
		require.ErrorIs(t, err, lost)
		require.Regexp(t, "^(<nil>|the API server did not answer: create maintenance job r1-[0-9]+: unexpected EOF)$", fmt.Sprint(err))
		f.settle(second)
		f.Jobs = fixtureJobs{f}
		require.Len(t, f.names(), 1, "lost answer: %v", lost)
	}
}
