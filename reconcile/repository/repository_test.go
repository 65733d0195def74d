package repository

import (
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
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
	"github.com/lateen-project/lateen/metrics"
)

func TestJobsWithoutARepositoryAreDeletedAfterTheDelay(t *testing.T) {
	m := newFixture(t)
	job := m.job("j1", "gone", func(job *batchv1.Job) { job.Status.Active = 1 })
	m.Job(job)
	require.Equal(t, map[string]bool{"velero/gone": true}, m.enqueued, "no repository would be enqueued for it")
	long := strings.Repeat("r", 64) // its label is a hash
	key := m.repository(long)
	clear(m.enqueued)
	m.Job(&batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Labels: map[string]string{api.LabelRepository: objects.RepositoryLabel(long)}}})
	require.Equal(t, map[string]bool{key: true}, m.enqueued)
	require.Equal(t, m.Policy.Timeout, m.settle("velero/gone"), "it runs: its end is an event")
	m.change("j1", m.end(batchv1.JobComplete))
	require.Equal(t, m.Policy.DeleteDelay, m.settle("velero/gone"))
	require.Equal(t, []string{"j1"}, m.names(), "Velero's server, which polls it, has not seen its end")
	m.clock.SetTime(m.clock.Now().Add(m.Policy.DeleteDelay))
	m.settle("velero/gone")
	require.Empty(t, m.names())
	require.Zero(t, m.patches)
}

func TestAJobWithoutARepositoryThatNeverGetsAPodIsReleasedFirst(t *testing.T) {
	m := newFixture(t)
	m.job("j1", "gone")
	require.Equal(t, m.Policy.PodWait, m.settle("velero/gone"))
	m.clock.SetTime(m.clock.Now().Add(m.Policy.PodWait))
	m.settle("velero/gone")
	released, err := m.client.BatchV1().Jobs("velero").Get(t.Context(), "j1", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, released.Status.Failed, "Velero's server waits for this number")
	m.change("j1", m.end(batchv1.JobFailed))
	require.Equal(t, m.Policy.DeleteDelay, m.settle("velero/gone"))
	m.clock.SetTime(m.clock.Now().Add(m.Policy.DeleteDelay))
	m.settle("velero/gone")
	require.Empty(t, m.names())
}

// counted returns the sum of a counter over its labels.
func counted(t *testing.T, registry *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			sum += metric.GetCounter().GetValue()
		}
	}
	return sum
}

func TestRejectedStartsBackOffWithAHistoryOfThree(t *testing.T) {
	m := newFixture(t)
	m.client.PrependReactor("create", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInvalid(schema.GroupKind{Group: "batch", Kind: "Job"}, "j1", field.ErrorList{field.Required(field.NewPath("spec"), "")})
	})
	key := m.repository("r1")
	m.clock.SetTime(m.clock.Now().Add(2 * time.Hour))
	for i := range 6 {
		next := m.settle(key)
		require.Equal(t, 5*time.Minute<<i, next)
		m.resync(key, 3)
		m.clock.SetTime(m.clock.Now().Add(next))
	}
}

// TestAClockThatIsAheadAbandonsNoJob sets the API server's clock 3 minutes behind the coordinator's.
func TestAClockThatIsAheadAbandonsNoJob(t *testing.T) {
	m := newFixture(t)
	key := m.repository("r1")
	m.job("j1", "r1")
	m.clock.SetTime(m.clock.Now().Add(3 * time.Minute))
	require.Equal(t, m.Policy.PodWait, m.settle(key), "it has been without a pod for a moment")
	m.change("j1", m.end(batchv1.JobComplete))
	m.clock.SetTime(m.clock.Now().Add(3 * time.Minute))
	require.NoError(t, m.client.BatchV1().Jobs("velero").Delete(t.Context(), "j1", metav1.DeleteOptions{}))
	m.job("j2", "gone", m.end(batchv1.JobComplete), func(job *batchv1.Job) {
		job.Status.Conditions[0].LastTransitionTime = metav1.NewTime(m.clock.Now().Add(-3 * time.Minute))
	})
	require.Equal(t, m.Policy.DeleteDelay, m.settle("velero/gone"), "Velero's server has had no time to see it")
}

// TestJobsWithPendingPodsFreeTheirPlaceAfterTheTimeout fills all places with such jobs, of Lateen and of Velero's server.
func TestJobsWithPendingPodsFreeTheirPlaceAfterTheTimeout(t *testing.T) {
	m := newFixture(t)
	for _, name := range []string{"r1", "r2", "r3"} {
		m.repository(name)
		job := m.job("of-"+name, name, func(job *batchv1.Job) { job.Status.Active, job.Status.Ready = 1, new(int32(0)) })
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: job.Name, Labels: map[string]string{batchv1.ControllerUidLabel: string(job.UID)}}}
		pod.Status = corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: "0/3 nodes are available"},
		}}
		_, err := m.client.CoreV1().Pods("velero").Create(t.Context(), pod, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	healthy := m.repository("r4")
	m.repositories[healthy].Status.LastMaintenanceTime = new(metav1.NewTime(m.clock.Now().Add(-2 * time.Hour)))
	require.Zero(t, m.settle(healthy), "all places are in use: the end of a job is an event")
	require.Len(t, m.names(), 3)
	require.Equal(t, m.Policy.PendingWait, m.settle("velero/r1"))
	m.clock.SetTime(m.clock.Now().Add(m.Policy.PendingWait))
	m.settle("velero/r1")
	run := m.repositories["velero/r1"].Status.RecentMaintenance[0]
	require.Equal(t, "pod did not start: pod is not scheduled: Unschedulable: 0/3 nodes are available (after 30m0s)", run.Message)
	released, err := m.client.BatchV1().Jobs("velero").Get(t.Context(), "of-r1", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, released.Status.Failed, "Kubernetes ends it, and Velero's server sees it")
	m.change("of-r1", m.end(batchv1.JobFailed))
	m.settle(healthy)
	require.Len(t, m.names(), 4)
}

// TestAJobOfTheServerHasADeadlineToo lets a job run without end. Velero's server sets no deadline.
func TestAJobOfTheServerHasADeadlineToo(t *testing.T) {
	m := newFixture(t)
	m.Policy.Timeout = time.Hour
	key := m.repository("r1")
	m.job("j1", "r1", func(job *batchv1.Job) { job.Status.Active, job.Status.Ready = 1, new(int32(1)) })
	require.Equal(t, time.Hour, m.settle(key))
	m.clock.SetTime(m.clock.Now().Add(time.Hour))
	m.settle(key)
	require.Contains(t, m.repositories[key].Status.RecentMaintenance[0].Message, "exceeded --repo-maintenance-timeout")
	released, err := m.client.BatchV1().Jobs("velero").Get(t.Context(), "j1", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, released.Status.Failed)
}

// TestAJobWithARunningPodIsNotAbandonedForASlowContainer covers an injected container that is not ready.
func TestAJobWithARunningPodIsNotAbandonedForASlowContainer(t *testing.T) {
	m := newFixture(t)
	key := m.repository("r1")
	m.job("j1", "r1", func(job *batchv1.Job) { job.Status.Active, job.Status.Ready = 1, new(int32(0)) })
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: "j1", Labels: map[string]string{batchv1.ControllerUidLabel: "j1"}}}
	pod.Status.Phase = corev1.PodRunning
	_, err := m.client.CoreV1().Pods("velero").Create(t.Context(), pod, metav1.CreateOptions{})
	require.NoError(t, err)
	m.settle(key)
	m.clock.SetTime(m.clock.Now().Add(m.Policy.PendingWait))
	require.Equal(t, m.Policy.PodWait, m.settle(key))
	require.Empty(t, m.repositories[key].Status.RecentMaintenance)
}

// TestADeletedRepositoryIsNeitherDueNorRunning deletes one whose job waits for a place, and one whose job runs.
func TestADeletedRepositoryIsNeitherDueNorRunning(t *testing.T) {
	m, registry := newFixture(t), prometheus.NewRegistry()
	m.Metrics, m.Limit = metrics.New(registry, "test", "node-1").Maintenance(), 1
	running, queued := m.repository("r1"), m.repository("r2")
	m.clock.SetTime(m.clock.Now().Add(2 * time.Hour))
	m.settle(running)
	m.settle(queued)
	load := func() map[string]float64 {
		all := map[string]float64{}
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if name := family.GetName(); name == "lateen_maintenance_running" || name == "lateen_maintenance_due" {
				all[name] = family.GetMetric()[0].GetGauge().GetValue()
			}
		}
		return all
	}
	require.Equal(t, map[string]float64{"lateen_maintenance_running": 1, "lateen_maintenance_due": 1}, load())
	delete(m.repositories, queued)
	m.settle(queued)
	require.Equal(t, map[string]float64{"lateen_maintenance_running": 1, "lateen_maintenance_due": 0}, load())
	delete(m.repositories, running)
	m.change(m.names()[0], m.end(batchv1.JobComplete))
	m.settle(running)
	require.Equal(t, map[string]float64{"lateen_maintenance_running": 0, "lateen_maintenance_due": 0}, load())
}

// TestOnlyMaintainableRepositoriesAreOverdue turns one repository read-only; another one uses restic.
func TestOnlyMaintainableRepositoriesAreOverdue(t *testing.T) {
	m, registry := newFixture(t), prometheus.NewRegistry()
	m.Metrics = metrics.New(registry, "test", "node-1").Maintenance()
	location := &velerov1.BackupStorageLocation{}
	m.Locations = oneLocation{location}
	key, restic, fresh := m.repository("r1"), m.repository("r2"), m.repository("r3")
	m.repositories[restic].Spec.RepositoryType = "restic"
	m.repositories[fresh].Status = velerov1.BackupRepositoryStatus{Phase: velerov1.BackupRepositoryPhaseNotReady}
	shown := func() map[string]float64 {
		all := map[string]float64{}
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, family := range families {
			for _, series := range family.GetMetric() {
				if name := family.GetName(); name == "lateen_maintenance_last_success_timestamp_seconds" || name == "lateen_maintenance_frequency_seconds" {
					all[name+" "+series.GetLabel()[0].GetValue()] = series.GetGauge().GetValue()
				}
			}
		}
		return all
	}
	settle := func() {
		for _, one := range []string{key, restic, fresh} {
			m.settle(one)
		}
	}
	settle()
	never := map[string]float64{"lateen_maintenance_last_success_timestamp_seconds r3": 0, "lateen_maintenance_frequency_seconds r3": 3600}
	both := map[string]float64{"lateen_maintenance_last_success_timestamp_seconds r1": 1764000000, "lateen_maintenance_frequency_seconds r1": 3600}
	maps.Copy(both, never)
	require.Equal(t, both, shown(), "restic has none")
	location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly
	m.repositories[fresh].Status.Phase = velerov1.BackupRepositoryPhaseReady
	settle()
	require.Empty(t, shown())
	location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadWrite
	m.repositories[fresh].Status.Phase = velerov1.BackupRepositoryPhaseNotReady
	m.Policy.Frequency = 30 * time.Minute
	settle()
	both["lateen_maintenance_frequency_seconds r1"], both["lateen_maintenance_frequency_seconds r3"] = 1800, 1800
	require.Equal(t, both, shown(), "--repo-maintenance-frequency counts")
}

type oneLocation struct {
	*velerov1.BackupStorageLocation
}

func (l oneLocation) Get(string) (*velerov1.BackupStorageLocation, bool) {
	return l.BackupStorageLocation, l.BackupStorageLocation != nil
}

func TestEventsSayWhatHappensToARepository(t *testing.T) {
	m, events := newFixture(t), record.NewFakeRecorder(100)
	m.Recorder = events
	key := m.repository("r1")
	m.repositories[key].Spec.BackupStorageLocation = "default"
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
		m.Locations = oneLocation{test.location}
		m.settle(key)
		m.settle(key)
		require.Equal(t, []string{test.event}, sent())
	}
	m.Locations = fixtureLocations{}
	m.run(key, m.end(batchv1.JobComplete))
	require.Equal(t, []string{"Normal MaintenanceSucceeded Maintenance succeeded in 1m0s"}, sent())
	m.run(key, m.outOfMemory)
	require.Equal(t, []string{"Warning MaintenanceFailed Maintenance failed after 1m0s: OOMKilled: its pod ran out of memory; set or raise memoryLimit in podResources of the maintenance ConfigMap"}, sent())
	denied := error(&apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusBadRequest, Message: "denied"}})
	m.client.PrependReactor("create", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) { return denied != nil, nil, denied })
	m.clock.SetTime(m.clock.Now().Add(2 * time.Hour))
	for range 2 {
		_, err := m.Reconcile(t.Context(), key)
		require.ErrorContains(t, err, "denied")
	}
	require.Equal(t, []string{"Warning MaintenanceSkipped Maintenance job cannot be created, retrying: create maintenance job r1-1764007292: denied"}, sent())
	denied = nil
	m.run(key, m.end(batchv1.JobComplete))
	require.Equal(t, []string{"Normal MaintenanceSucceeded Maintenance succeeded in 1m0s"}, sent())
}
