package repository

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/maintenance"
)

// fixture is a Reconciler whose caches are always current. The API server has no controllers: the test ends the jobs.
type fixture struct {
	*testing.T
	*Reconciler
	client       *fake.Clientset
	clock        *testclock.FakePassiveClock
	repositories map[string]*velerov1.BackupRepository // by key
	enqueued     map[string]bool
	registry     *prometheus.Registry
	patches      int   // number of writes to BackupRepositories
	rejection    error // of the next write to a BackupRepository
}

type fixtureRepositories struct{ *fixture }

func (f fixtureRepositories) Get(key string) (*velerov1.BackupRepository, bool) {
	found, ok := f.repositories[key]
	return found, ok
}

func (f fixtureRepositories) List() (all []*velerov1.BackupRepository) {
	for _, repository := range f.repositories {
		all = append(all, repository)
	}
	return all
}

func (f fixtureRepositories) Record(written *velerov1.BackupRepository) {
	f.repositories["velero/"+written.Name] = written
}

// Patch implements Patcher.
func (f fixtureRepositories) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*velerov1.BackupRepository, error) {
	if err := f.rejection; err != nil {
		f.rejection = nil
		return nil, err
	}
	changed := f.repositories["velero/"+name].DeepCopy()
	fields := struct {
		Status map[string]json.RawMessage `json:"status"`
	}{}
	require.NoError(f, json.Unmarshal(data, &fields))
	if _, ok := fields.Status["recentMaintenance"]; ok {
		changed.Status.RecentMaintenance = nil // a merge patch replaces lists
	}
	require.NoError(f, json.Unmarshal(data, changed))
	changed.ResourceVersion = strconv.Itoa(2 + f.patches)
	f.repositories["velero/"+name] = changed
	f.patches++
	return changed, nil
}

// oneLocation is the cache of the only BackupStorageLocation, or of none.
type oneLocation struct {
	*velerov1.BackupStorageLocation
}

func (o oneLocation) Get(string) (*velerov1.BackupStorageLocation, bool) {
	return o.BackupStorageLocation, o.BackupStorageLocation != nil
}

type fixtureJobs struct{ *fixture }

func (fixtureJobs) Record(*batchv1.Job)              {} // List asks the API server
func (fixtureJobs) RecordDeletion(string, types.UID) {}

func (f fixtureJobs) List() (all []*batchv1.Job) {
	list, err := f.client.BatchV1().Jobs("velero").List(f.Context(), metav1.ListOptions{})
	require.NoError(f, err)
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all
}

type fixtureTerminalPods struct{ *fixture }

func (f fixtureTerminalPods) List() (all []*corev1.Pod) {
	list, err := f.client.CoreV1().Pods("velero").List(f.Context(), metav1.ListOptions{})
	require.NoError(f, err)
	for i := range list.Items {
		if phase := list.Items[i].Status.Phase; phase == corev1.PodSucceeded || phase == corev1.PodFailed {
			all = append(all, &list.Items[i])
		}
	}
	return all
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		T: t, client: fake.NewClientset(), clock: testclock.NewFakePassiveClock(time.Unix(1764000000, 0)),
		repositories: map[string]*velerov1.BackupRepository{}, enqueued: map[string]bool{}, registry: prometheus.NewRegistry(),
	}
	f.Reconciler = &Reconciler{
		Repositories: fixtureRepositories{f}, Locations: oneLocation{&velerov1.BackupStorageLocation{}}, Jobs: fixtureJobs{f}, TerminalPods: fixtureTerminalPods{f},
		Client: fixtureRepositories{f}, JobClient: exposer.Jobs{Client: f.client}, Enqueue: func(key string) { f.enqueued[key] = true },
		Plan: func(context.Context, *velerov1.BackupRepository) (JobPlan, error) {
			return JobPlan{Settings: objects.JobSettings{Keep: maintenance.DefaultKeep}, Created: func(*batchv1.Job) {}}, nil
		},
		Policy: maintenance.DefaultPolicy(), Limit: 3, Recorder: &record.FakeRecorder{}, Clock: f.clock,
		Metrics: metrics.New(f.registry, "test", "node-1").Maintenance(),
	}
	created := map[string]string{} // by name: what makes the UID of the next job unique
	f.client.PrependReactor("create", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
		job := action.(clienttesting.CreateAction).GetObject().(*batchv1.Job)
		job.UID, job.CreationTimestamp = types.UID(job.Name+created[job.Name]), metav1.NewTime(f.clock.Now())
		created[job.Name] += "-later"
		return false, nil, nil
	})
	return f
}

// successor returns the next coordinator, which knows only what was written.
func (f *fixture) successor() *fixture {
	next := newFixture(f.T)
	next.client, next.clock, next.repositories, next.registry = f.client, f.clock, f.repositories, f.registry
	next.JobClient.Client, next.Clock, next.Plan, next.Metrics = f.client, f.clock, f.Plan, f.Metrics
	return next
}

// repository creates a BackupRepository that is due every hour and was maintained just now.
func (f *fixture) repository(name string) string {
	key := "velero/" + name
	f.repositories[key] = &velerov1.BackupRepository{
		ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec:       velerov1.BackupRepositorySpec{RepositoryType: "kopia", MaintenanceFrequency: metav1.Duration{Duration: time.Hour}},
		Status: velerov1.BackupRepositoryStatus{
			Phase: velerov1.BackupRepositoryPhaseReady, LastMaintenanceTime: new(metav1.NewTime(f.clock.Now())),
		},
	}
	return key
}

// pass advances the time.
func (f *fixture) pass(d time.Duration) { f.clock.SetTime(f.clock.Now().Add(d)) }

// values returns counters and gauges of these names, by name and repository.
func (f *fixture) values(names ...string) map[string]float64 {
	f.Helper()
	all := map[string]float64{}
	families, err := f.registry.Gather()
	require.NoError(f, err)
	for _, family := range families {
		for _, series := range family.GetMetric() {
			if name := family.GetName(); slices.Contains(names, name) {
				for _, label := range series.GetLabel() {
					name += " " + label.GetValue()
				}
				all[name] = series.GetGauge().GetValue() + series.GetCounter().GetValue()
			}
		}
	}
	return all
}

// resync does what Velero's server does every 5 minutes. It keeps that many entries, and clears their messages.
func (f *fixture) resync(key string, entries int) {
	repository := f.repositories[key].DeepCopy()
	history := repository.Status.RecentMaintenance
	repository.Status.RecentMaintenance = history[max(0, len(history)-entries):]
	for i := range repository.Status.RecentMaintenance {
		repository.Status.RecentMaintenance[i].Message = ""
	}
	f.repositories[key] = repository
}

// job creates a job of a repository, as the API server returns it a moment later.
func (f *fixture) job(name, repository string, change ...func(*batchv1.Job)) *batchv1.Job {
	f.Helper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: "velero", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(f.clock.Now()),
		Labels: map[string]string{api.LabelRepository: objects.RepositoryLabel(repository)},
	}}
	for _, one := range change {
		one(job)
	}
	_, err := f.client.BatchV1().Jobs("velero").Create(f.Context(), job, metav1.CreateOptions{})
	require.NoError(f, err)
	return job
}

// run waits for the next job of a repository and ends it.
func (f *fixture) run(key string, end func(*batchv1.Job)) (job string) {
	f.Helper()
	for range 5 {
		next := f.settle(key)
		for _, job := range f.Jobs.List() {
			if objects.ReadJob(job).Outcome == objects.JobUnfinished {
				f.pass(time.Minute)
				f.change(job.Name, end)
				f.settle(key)
				return job.Name
			}
		}
		require.Positive(f, next, "it gets no further job")
		f.pass(next)
	}
	require.Fail(f, "it has no job")
	return ""
}

// pod creates a pod of a job.
func (f *fixture) pod(job *batchv1.Job, status corev1.PodStatus) *corev1.Pod {
	f.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "velero", Name: job.Name + "-" + strings.ToLower(string(status.Phase)), Labels: map[string]string{batchv1.ControllerUidLabel: string(job.UID)},
	}, Status: status}
	_, err := f.client.CoreV1().Pods("velero").Create(f.Context(), pod, metav1.CreateOptions{})
	require.NoError(f, err)
	return pod
}

// outOfMemory fails a job whose pod was OOM-killed.
func (f *fixture) outOfMemory(job *batchv1.Job) {
	f.pod(job, corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "OOMKilled"}}}}})
	f.end(batchv1.JobFailed)(job)
}

// end ends a job, with a condition and counts in its status.
func (f *fixture) end(condition batchv1.JobConditionType) func(*batchv1.Job) {
	return func(job *batchv1.Job) {
		now := metav1.NewTime(f.clock.Now())
		job.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: now}}
		if condition == batchv1.JobComplete {
			job.Status.Succeeded, job.Status.CompletionTime = 1, &now
		} else {
			job.Status.Failed = 1
		}
	}
}

func (f *fixture) read(name string) *batchv1.Job {
	f.Helper()
	job, err := f.client.BatchV1().Jobs("velero").Get(f.Context(), name, metav1.GetOptions{})
	require.NoError(f, err)
	return job
}

func (f *fixture) remove(name string) {
	f.Helper()
	require.NoError(f, f.client.BatchV1().Jobs("velero").Delete(f.Context(), name, metav1.DeleteOptions{}))
}

func (f *fixture) change(name string, change func(*batchv1.Job)) {
	f.Helper()
	job := f.read(name)
	change(job)
	_, err := f.client.BatchV1().Jobs("velero").Update(f.Context(), job, metav1.UpdateOptions{})
	require.NoError(f, err)
}

// names returns the names of all jobs.
func (f *fixture) names() (names []string) {
	for _, job := range f.Jobs.List() {
		names = append(names, job.Name)
	}
	return names
}

// settle reconciles a key until nothing enqueues it. It returns the delay until the next reconcile; 0 is never.
func (f *fixture) settle(key string) time.Duration {
	f.Helper()
	for range 20 {
		delete(f.enqueued, key)
		next, err := f.Reconcile(f.Context(), key)
		require.NoError(f, err)
		if !f.enqueued[key] {
			return next
		}
		require.Zero(f, next, "an enqueued key needs no timer")
	}
	require.Failf(f, "it is enqueued without end", "%s", key)
	return 0
}
