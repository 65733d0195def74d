package reconcile

import (
	"context"
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/build"
	"github.com/lateen-project/lateen/reconcile/maintenance"
)

// maintained is a Maintainer whose caches are as new as the API server, which has no controllers: the test ends jobs.
type maintained struct {
	*testing.T
	*Maintainer
	client       *fake.Clientset
	clock        *testclock.FakePassiveClock
	repositories map[string]*velerov1.BackupRepository // by key
	enqueued     map[string]bool
	patches      int // of BackupRepositories
}

type maintainedRepositories struct{ *maintained }

func (r maintainedRepositories) Get(key string) (*velerov1.BackupRepository, bool) {
	found, ok := r.repositories[key]
	return found, ok
}

func (r maintainedRepositories) List() (all []*velerov1.BackupRepository) {
	for _, repository := range r.repositories {
		all = append(all, repository)
	}
	return all
}

// Patch implements Patcher.
func (r maintainedRepositories) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*velerov1.BackupRepository, error) {
	changed := r.repositories["velero/"+name].DeepCopy()
	fields := struct {
		Status map[string]json.RawMessage `json:"status"`
	}{}
	require.NoError(r, json.Unmarshal(data, &fields))
	if _, ok := fields.Status["recentMaintenance"]; ok {
		changed.Status.RecentMaintenance = nil // a merge patch replaces lists
	}
	require.NoError(r, json.Unmarshal(data, changed))
	r.repositories["velero/"+name] = changed
	r.patches++
	return changed, nil
}

type maintainedLocations struct{}

func (maintainedLocations) Get(string) (*velerov1.BackupStorageLocation, bool) {
	return &velerov1.BackupStorageLocation{}, true
}

type maintainedJobs struct{ *maintained }

func (j maintainedJobs) List() (all []*batchv1.Job) {
	list, err := j.client.BatchV1().Jobs("velero").List(j.Context(), metav1.ListOptions{})
	require.NoError(j, err)
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

func newMaintained(t *testing.T) *maintained {
	t.Helper()
	m := &maintained{
		T: t, client: fake.NewClientset(), clock: testclock.NewFakePassiveClock(time.Unix(1764000000, 0)),
		repositories: map[string]*velerov1.BackupRepository{}, enqueued: map[string]bool{},
	}
	m.Maintainer = &Maintainer{
		Repositories: maintainedRepositories{m}, Locations: maintainedLocations{}, Jobs: maintainedJobs{m}, Client: maintainedRepositories{m},
		Exec: exposer.Jobs{Client: m.client}, Wake: func(key string) { m.enqueued[key] = true },
		Plan: func(context.Context, *velerov1.BackupRepository) (JobPlan, error) {
			return JobPlan{Settings: build.JobSettings{Keep: maintenance.DefaultKeep}, Made: func() {}}, nil
		},
		Policy: maintenance.DefaultPolicy(), Limit: 3, Timeout: time.Hour, Recorder: record.NewFakeRecorder(100), Clock: m.clock,
	}
	return m
}

// job writes a job of a repository, as the API server has it a moment later.
func (m *maintained) job(name, repository string, change ...func(*batchv1.Job)) *batchv1.Job {
	m.Helper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: "velero", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(m.clock.Now()),
		Labels: map[string]string{build.LabelRepository: build.RepositoryLabel(repository)},
	}}
	for _, one := range change {
		one(job)
	}
	_, err := m.client.BatchV1().Jobs("velero").Create(m.Context(), job, metav1.CreateOptions{})
	require.NoError(m, err)
	return job
}

// end has a job end, with a condition and in numbers.
func (m *maintained) end(condition batchv1.JobConditionType) func(*batchv1.Job) {
	return func(job *batchv1.Job) {
		now := metav1.NewTime(m.clock.Now())
		job.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: now}}
		if condition == batchv1.JobComplete {
			job.Status.Succeeded, job.Status.CompletionTime = 1, &now
		} else {
			job.Status.Failed = 1
		}
	}
}

func (m *maintained) change(name string, change func(*batchv1.Job)) {
	m.Helper()
	job, err := m.client.BatchV1().Jobs("velero").Get(m.Context(), name, metav1.GetOptions{})
	require.NoError(m, err)
	change(job)
	_, err = m.client.BatchV1().Jobs("velero").Update(m.Context(), job, metav1.UpdateOptions{})
	require.NoError(m, err)
}

// names are those of the jobs that there are.
func (m *maintained) names() (names []string) {
	for _, job := range m.Jobs.List() {
		names = append(names, job.Name)
	}
	return names
}

// settle reconciles a key until nothing enqueues it again, and returns when it is to be reconciled next; 0 is never.
func (m *maintained) settle(key string) time.Duration {
	m.Helper()
	for range 20 {
		delete(m.enqueued, key)
		next, err := m.Reconcile(m.Context(), key)
		require.NoError(m, err)
		if !m.enqueued[key] {
			return next
		}
	}
	require.Failf(m, "it does not come to rest", "%s", key)
	return 0
}

func TestJobsWithoutARepositoryAreDeletedOnceTheirEndCouldBeSeen(t *testing.T) {
	m := newMaintained(t)
	job := m.job("j1", "gone", func(job *batchv1.Job) { job.Status.Active = 1 })
	m.Maintainer.Job(job)
	require.Equal(t, map[string]bool{"velero/gone": true}, m.enqueued, "no repository would be enqueued for it")
	require.Zero(t, m.settle("velero/gone"), "it runs: its end is an event")
	m.change("j1", m.end(batchv1.JobComplete))
	require.Equal(t, m.Policy.LetGo, m.settle("velero/gone"))
	require.Equal(t, []string{"j1"}, m.names(), "Velero's server, which polls it, has not seen its end")
	m.clock.SetTime(m.clock.Now().Add(m.Policy.LetGo))
	m.settle("velero/gone")
	require.Empty(t, m.names())
	require.Zero(t, m.patches)
}

func TestAJobWithoutARepositoryThatNeverGetsAPodIsReleasedFirst(t *testing.T) {
	m := newMaintained(t)
	m.job("j1", "gone")
	require.Equal(t, m.Policy.PodWait, m.settle("velero/gone"))
	m.clock.SetTime(m.clock.Now().Add(m.Policy.PodWait))
	m.settle("velero/gone")
	released, err := m.client.BatchV1().Jobs("velero").Get(t.Context(), "j1", metav1.GetOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, released.Status.Failed, "Velero's server waits for this number")
	m.change("j1", m.end(batchv1.JobFailed))
	m.clock.SetTime(m.clock.Now().Add(m.Policy.LetGo))
	m.settle("velero/gone")
	require.Empty(t, m.names())
}
