package repository

import (
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
	"k8s.io/apimachinery/pkg/util/validation/field"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

func TestJobsWithoutARepositoryAreDeletedAfterTheDelay(t *testing.T) {
	f := newFixture(t)
	f.Job(f.job("j1", "gone", func(job *batchv1.Job) { job.Status.Active = 1 }))
	require.Equal(t, map[string]bool{"velero/gone": true}, f.enqueued, "no repository would be enqueued for it")
	long := strings.Repeat("r", 64) // its label is a hash
	key := f.repository(long)
	clear(f.enqueued)
	f.Job(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Labels: map[string]string{api.LabelRepository: objects.RepositoryLabel(long)}}})
	require.Equal(t, map[string]bool{key: true}, f.enqueued)
	require.Equal(t, f.Policy.Timeout, f.settle("velero/gone"), "it runs: its end is an event")
	f.change("j1", f.end(batchv1.JobComplete))
	require.Equal(t, f.Policy.DeleteDelay, f.settle("velero/gone"))
	require.Equal(t, []string{"j1"}, f.names(), "Velero's server, which polls it, has not seen its end")
	f.Jobs = &staleJobs{cached: f.Jobs.List()}
	f.client.ClearActions()
	f.pass(f.Policy.DeleteDelay)
	f.settle("velero/gone")
	deletions := slices.DeleteFunc(f.client.Actions(), func(action clienttesting.Action) bool { return !action.Matches("delete", "jobs") })
	require.Len(t, deletions, 1, "it is not deleted again while the cache shows it")
	f.Jobs = fixtureJobs{f}
	require.Empty(t, f.names())
	require.Zero(t, f.patches)
}

// The label of its jobs is a hash. The event of a job may come before that of the repository.
func TestJobsOfALongRepositoryAreNotDeletedBecauseTheCacheLackedIt(t *testing.T) {
	f := newFixture(t)
	name := strings.Repeat("r", 64)
	key := f.repository(name)
	f.job("j1", name, f.end(batchv1.JobComplete))
	byLabel := "velero/" + objects.RepositoryLabel(name)
	f.settle(byLabel)
	f.pass(f.Policy.DeleteDelay)
	clear(f.enqueued)
	require.Zero(t, f.settle(byLabel))
	require.Equal(t, []string{"j1"}, f.names())
	require.True(t, f.enqueued[key])
}

func TestOnlyAChangeOfALocationEnqueuesItsRepositories(t *testing.T) {
	f := newFixture(t)
	key := f.repository("r1")
	f.repositories[key].Spec.BackupStorageLocation = "default"
	location := &velerov1.BackupStorageLocation{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "default"}}
	event := func() bool {
		clear(f.enqueued)
		f.Locations = oneLocation{location}
		f.Location(location)
		return f.enqueued[key]
	}
	require.True(t, event())
	location.Status.LastValidationTime = &metav1.Time{Time: f.clock.Now()}
	require.False(t, event(), "Velero's server writes it each minute")
	location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly
	require.True(t, event())
}

// Velero's server deletes it at once where keepLatestMaintenanceJobs is 0.
func TestADeletedJobStillRaisesTheMemoryLimitOfTheNext(t *testing.T) {
	f := newFixture(t)
	key := f.repository("r1")
	f.remove(f.run(key, f.outOfMemory))
	f.pass(2 * time.Hour)
	require.InEpsilon(t, 1.5, objects.ReadJob(f.read(f.run(key, f.end(batchv1.JobComplete)))).Factor, 0)
}

func TestAJobWithoutARepositoryThatNeverGetsAPodIsReleasedFirst(t *testing.T) {
	f := newFixture(t)
	f.job("j1", "gone")
	require.Equal(t, f.Policy.PodWait, f.settle("velero/gone"))
	f.pass(f.Policy.PodWait)
	f.Jobs = &staleJobs{cached: f.Jobs.List()}
	require.Zero(t, f.settle("velero/gone"))
	require.EqualValues(t, 1, f.read("j1").Status.Failed, "Velero's server waits for this number")
	require.EqualValues(t, 1, f.Jobs.List()[0].Status.Failed, "the next step knows it before the event")
	f.Jobs = fixtureJobs{f}
	f.change("j1", f.end(batchv1.JobFailed))
	require.Equal(t, f.Policy.DeleteDelay, f.settle("velero/gone"))
	f.pass(f.Policy.DeleteDelay)
	clear(f.enqueued)
	_, err := f.Reconcile(t.Context(), "velero/gone")
	require.NoError(t, err)
	require.Empty(t, f.names())
	require.True(t, f.enqueued["velero/gone"], "the deletion of a job that no watch has shown is no event")
}

// TestRejectedStartsBackOffWithAHistoryOfThree has no job that could record the number of failures.
func TestRejectedStartsBackOffWithAHistoryOfThree(t *testing.T) {
	f := newFixture(t)
	f.client.PrependReactor("create", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInvalid(schema.GroupKind{Group: "batch", Kind: "Job"}, "j1", field.ErrorList{field.Required(field.NewPath("spec"), "")})
	})
	key := f.repository("r1")
	f.pass(2 * time.Hour)
	for i := range 6 {
		require.Equal(t, 5*time.Minute<<i, f.settle(key))
		f.resync(key, 3)
		f.pass(5 * time.Minute << i)
	}
}

// TestAClockThatIsAheadAbandonsNoJob sets the API server's clock 3 minutes behind the coordinator's.
func TestAClockThatIsAheadAbandonsNoJob(t *testing.T) {
	f := newFixture(t)
	key := f.repository("r1")
	f.job("j1", "r1")
	f.pass(3 * time.Minute)
	require.Equal(t, f.Policy.PodWait, f.settle(key), "it has been without a pod for a moment")
	f.change("j1", func(job *batchv1.Job) {
		f.end(batchv1.JobComplete)(job)
		job.Status.Conditions[0].LastTransitionTime = metav1.NewTime(f.clock.Now().Add(-3 * time.Minute))
	})
	delete(f.repositories, key)
	require.Equal(t, f.Policy.DeleteDelay, f.settle(key), "Velero's server has had no time to see it")
}

// TestJobsWithPendingPodsFreeTheirPlaceAfterTheTimeout fills all places with such jobs, of Lateen and of Velero's server.
func TestJobsWithPendingPodsFreeTheirPlaceAfterTheTimeout(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"r1", "r2", "r3"} {
		f.repository(name)
		job := f.job("of-"+name, name, func(job *batchv1.Job) { job.Status.Active, job.Status.Ready = 1, new(int32(0)) })
		f.pod(job, corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available"},
		}})
	}
	healthy := f.repository("r4")
	f.repositories[healthy].Status.LastMaintenanceTime = new(metav1.NewTime(f.clock.Now().Add(-2 * time.Hour)))
	require.Zero(t, f.settle(healthy), "all places are in use: the end of a job is an event")
	require.Len(t, f.names(), 3)
	require.Equal(t, f.Policy.PendingWait, f.settle("velero/r1"))
	f.pass(f.Policy.PendingWait)
	require.Zero(t, f.settle("velero/r1"))
	run := f.repositories["velero/r1"].Status.RecentMaintenance[0]
	require.Equal(t, "pod did not start: pod is not scheduled: Unschedulable: 0/3 nodes are available (after 30m0s)", run.Message)
	require.EqualValues(t, 1, f.read("of-r1").Status.Failed, "Kubernetes ends it, and Velero's server sees it")
	f.change("of-r1", f.end(batchv1.JobFailed))
	f.settle(healthy)
	require.Len(t, f.names(), 4)
}

func TestAJobWithoutAPodIsAbandonedWithTheReason(t *testing.T) {
	f := newFixture(t)
	key := f.repository("r1")
	f.job("j1", "r1", func(job *batchv1.Job) { job.Spec.Template.Spec.PriorityClassName = "absent" })
	f.pass(f.settle(key))
	f.settle(key)
	require.Contains(t, f.repositories[key].Status.RecentMaintenance[0].Message, "PriorityClass of its job does not exist: absent")
}

// TestAJobWithARunningPodIsNotAbandonedForASlowContainer covers an injected container that is not ready.
func TestAJobWithARunningPodIsNotAbandonedForASlowContainer(t *testing.T) {
	f := newFixture(t)
	key := f.repository("r1")
	job := f.job("j1", "r1", func(job *batchv1.Job) { job.Status.Active, job.Status.Ready = 1, new(int32(0)) })
	f.pod(job, corev1.PodStatus{Phase: corev1.PodRunning})
	f.settle(key)
	f.pass(f.Policy.PendingWait)
	require.Equal(t, f.Policy.PodWait, f.settle(key))
	require.Empty(t, f.repositories[key].Status.RecentMaintenance)
}

// TestADeletedRepositoryIsNeitherDueNorRunning deletes one whose job waits for a place, and one whose job runs.
func TestADeletedRepositoryIsNeitherDueNorRunning(t *testing.T) {
	f := newFixture(t)
	f.Limit = 1
	running, queued := f.repository("r1"), f.repository("r2")
	f.pass(2 * time.Hour)
	f.settle(running)
	f.settle(queued)
	load := func() map[string]float64 { return f.values("lateen_maintenance_running", "lateen_maintenance_due") }
	require.Equal(t, map[string]float64{"lateen_maintenance_running": 1, "lateen_maintenance_due": 1}, load())
	delete(f.repositories, queued)
	f.settle(queued)
	require.Equal(t, map[string]float64{"lateen_maintenance_running": 1, "lateen_maintenance_due": 0}, load())
	delete(f.repositories, running)
	f.change(f.names()[0], f.end(batchv1.JobComplete))
	f.settle(running)
	require.Equal(t, map[string]float64{"lateen_maintenance_running": 0, "lateen_maintenance_due": 0}, load())
	require.Empty(t, f.values("lateen_maintenance_frequency_seconds", "velero_repo_maintenance_success_total"), "it would be overdue for ever")
}

// TestOnlyMaintainableRepositoriesAreOverdue turns one repository read-only; another one uses restic.
func TestOnlyMaintainableRepositoriesAreOverdue(t *testing.T) {
	f := newFixture(t)
	location := &velerov1.BackupStorageLocation{}
	f.Locations = oneLocation{location}
	key, restic, fresh := f.repository("r1"), f.repository("r2"), f.repository("r3")
	f.repositories[restic].Spec.RepositoryType = "restic"
	f.repositories[fresh].Status = velerov1.BackupRepositoryStatus{Phase: velerov1.BackupRepositoryPhaseNotReady}
	last, frequency := "lateen_maintenance_last_success_timestamp_seconds", "lateen_maintenance_frequency_seconds"
	shown := func() map[string]float64 { return f.values(last, frequency) }
	settle := func() {
		for _, one := range []string{key, restic, fresh} {
			f.settle(one)
		}
	}
	settle()
	both := map[string]float64{last + " r1": 1764000000, frequency + " r1": 3600, last + " r3": 0, frequency + " r3": 3600}
	require.Equal(t, both, shown(), "restic has none")
	location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly
	f.repositories[fresh].Status.Phase = velerov1.BackupRepositoryPhaseReady
	settle()
	require.Empty(t, shown())
	location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadWrite
	f.repositories[fresh].Status.Phase = velerov1.BackupRepositoryPhaseNotReady
	f.Policy.Frequency = 30 * time.Minute
	settle()
	both[frequency+" r1"], both[frequency+" r3"] = 1800, 1800
	require.Equal(t, both, shown(), "--repo-maintenance-frequency counts")
}

func TestEventsSayWhatHappensToARepository(t *testing.T) {
	f, events := newFixture(t), record.NewFakeRecorder(100)
	f.Recorder = events
	key := f.repository("r1")
	f.repositories[key].Spec.BackupStorageLocation = "default"
	sent := func() (all []string) {
		for len(events.Events) > 0 {
			all = append(all, <-events.Events)
		}
		return all
	}
	readOnly := &velerov1.BackupStorageLocation{Spec: velerov1.BackupStorageLocationSpec{AccessMode: velerov1.BackupStorageLocationAccessModeReadOnly}}
	for _, test := range []struct {
		location *velerov1.BackupStorageLocation
		event    string
	}{
		{nil, "Warning MaintenanceSkipped Maintenance skipped: BackupStorageLocation default does not exist. Create it, or delete this repository"},
		{readOnly, "Normal MaintenanceSkipped Maintenance skipped: BackupStorageLocation default is read-only"},
	} {
		f.Locations = oneLocation{test.location}
		f.settle(key)
		f.settle(key)
		require.Equal(t, []string{test.event}, sent())
	}
	f.Locations = oneLocation{&velerov1.BackupStorageLocation{}}
	f.run(key, f.end(batchv1.JobComplete))
	require.Equal(t, []string{"Normal MaintenanceSucceeded Maintenance succeeded in 1m0s"}, sent())
	f.run(key, f.outOfMemory)
	require.Equal(t, []string{"Warning MaintenanceFailed Maintenance failed after 1m0s: OOMKilled: its pod ran out of memory; set or raise memoryLimit in podResources of the maintenance ConfigMap"}, sent())
	denied := error(&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadRequest, Message: "denied"}})
	f.client.PrependReactor("create", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) { return denied != nil, nil, denied })
	f.pass(2 * time.Hour)
	for range 2 {
		_, err := f.Reconcile(t.Context(), key)
		require.ErrorContains(t, err, "denied")
	}
	require.Equal(t, []string{"Warning MaintenanceSkipped Maintenance job cannot be created, retrying: create maintenance job r1-1764007292: denied"}, sent())
	denied = nil
	f.run(key, f.end(batchv1.JobComplete))
	require.Equal(t, []string{"Normal MaintenanceSucceeded Maintenance succeeded in 1m0s"}, sent())
	require.Zero(t, f.state(key).failures)
}
