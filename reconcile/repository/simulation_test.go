package repository

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	testclock "k8s.io/utils/clock/testing"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/reconcile/seeds"
)

// simulation simulates a cluster with due repositories. Its jobs end at any time, and its caches lag behind.
type simulation struct {
	*testing.T
	noLog  context.Context // discards the log
	random *rand.Rand
	clock  *testclock.FakePassiveClock
	client *fake.Clientset
	m      *Reconciler

	version            int
	repositories       map[string]*velerov1.BackupRepository // as written
	jobs               map[string]*batchv1.Job
	cachedRepositories map[string]*velerov1.BackupRepository // as cached
	cachedJobs         map[string]*batchv1.Job
	pendingUpdates     []func() // pending cache updates, in this order
	enqueued           map[string]bool
	timers             map[string]time.Time
	readOnly           bool // the location is read-only
	maxUnfinished      int  // maximum of unfinished jobs at once
}

// The caches and the client of a simulation, as a Reconciler needs them.
type (
	simulatedRepositories struct{ *simulation }
	simulatedLocations    struct{ *simulation }
	simulatedJobs         struct{ *simulation }
)

func (s simulatedRepositories) Get(key string) (*velerov1.BackupRepository, bool) {
	found, ok := s.cachedRepositories[key]
	return found, ok
}

func (s simulatedRepositories) List() []*velerov1.BackupRepository {
	return slices.Collect(maps.Values(s.cachedRepositories))
}

func (s simulatedLocations) Get(string) (*velerov1.BackupStorageLocation, bool) {
	location := &velerov1.BackupStorageLocation{}
	if s.readOnly {
		location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly
	}
	return location, true
}

func (s simulatedJobs) List() []*batchv1.Job { return slices.Collect(maps.Values(s.cachedJobs)) }

// Patch implements Patcher.
func (s simulatedRepositories) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*velerov1.BackupRepository, error) {
	key := "velero/" + name
	changed := s.repositories[key].DeepCopy()
	changed.Status.RecentMaintenance = nil
	if err := json.Unmarshal(data, changed); err != nil {
		return nil, err
	}
	s.write(changed)
	return changed, nil
}

func (s *simulation) nextVersion() string {
	s.version++
	return strconv.Itoa(s.version)
}

func (s *simulation) write(repository *velerov1.BackupRepository) {
	key := "velero/" + repository.Name
	repository.ResourceVersion = s.nextVersion()
	s.repositories[key] = repository
	s.pendingUpdates = append(s.pendingUpdates, func() {
		s.cachedRepositories[key] = repository
		s.m.Enqueue(key)
	})
}

// writeJob writes a job to the API server, and later to the caches.
func (s *simulation) writeJob(job *batchv1.Job) {
	job.ResourceVersion = s.nextVersion()
	s.jobs[job.Name] = job
	s.pendingUpdates = append(s.pendingUpdates, func() {
		s.cachedJobs[job.Name] = job
		s.m.Job(job)
	})
	unfinished := 0
	for _, one := range s.jobs {
		if len(one.Status.Conditions) == 0 {
			unfinished++
		}
	}
	s.maxUnfinished = max(s.maxUnfinished, unfinished)
}

const (
	simulatedLimit = 3          // jobs that may run at once
	terminal       = "terminal" // namespace of as many repositories, the longest due; their jobs can never be created
)

func newSimulation(t *testing.T, random *rand.Rand, count int) *simulation {
	t.Helper()
	s := &simulation{
		T: t, noLog: klog.NewContext(t.Context(), klog.Logger{}), random: random, clock: testclock.NewFakePassiveClock(time.Unix(1764000000, 0)), client: fake.NewClientset(),
		repositories: map[string]*velerov1.BackupRepository{}, jobs: map[string]*batchv1.Job{},
		cachedRepositories: map[string]*velerov1.BackupRepository{}, cachedJobs: map[string]*batchv1.Job{},
		enqueued: map[string]bool{}, timers: map[string]time.Time{},
	}
	s.client.PrependReactor("create", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
		job := action.(clienttesting.CreateAction).GetObject().(*batchv1.Job).DeepCopy()
		require.NotContains(t, s.jobs, job.Name, "a job is created again")
		job.UID, job.CreationTimestamp = types.UID(job.Name), metav1.NewTime(s.clock.Now())
		s.writeJob(job)
		return true, job, nil
	})
	s.client.PrependReactor("patch", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
		patch := action.(clienttesting.PatchAction)
		before := s.jobs[patch.GetName()]
		job := before.DeepCopy()
		require.NoError(t, json.Unmarshal(patch.GetPatch(), job))
		if job.ResourceVersion != before.ResourceVersion {
			return true, nil, apierrors.NewConflict(batchv1.Resource("jobs"), job.Name, errors.New("it has changed"))
		}
		s.writeJob(job)
		return true, job, nil
	})
	s.client.PrependReactor("delete", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.DeleteAction).GetName()
		deleted := s.jobs[name]
		require.NotNil(t, deleted, "a job is deleted again")
		delete(s.jobs, name)
		s.pendingUpdates = append(s.pendingUpdates, func() {
			delete(s.cachedJobs, name)
			s.m.Job(deleted)
		})
		return true, nil, nil
	})
	policy := maintenance.DefaultPolicy()
	policy.PodWait = 24 * time.Hour // pods are also late here
	s.m = &Reconciler{
		Repositories: simulatedRepositories{s}, Locations: simulatedLocations{s}, Jobs: simulatedJobs{s}, TerminalPods: emptyPods{}, Client: simulatedRepositories{s},
		JobClient: exposer.Jobs{Client: s.client}, Enqueue: func(key string) { s.enqueued[key] = true },
		Plan: func(_ context.Context, repository *velerov1.BackupRepository) (JobPlan, error) {
			if repository.Spec.VolumeNamespace == terminal || random.IntN(4) == 0 {
				return JobPlan{}, errors.New("the API server has no answer")
			}
			return JobPlan{Created: func(*batchv1.Job) {}}, nil
		},
		Policy: policy, Limit: simulatedLimit, Recorder: &record.FakeRecorder{}, Clock: s.clock,
	}
	for i := range count {
		repository := &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: fmt.Sprint("r", i), UID: types.UID(fmt.Sprint(i))}}
		repository.Spec.RepositoryType, repository.Spec.MaintenanceFrequency.Duration = "kopia", time.Hour
		repository.Status.Phase = velerov1.BackupRepositoryPhaseReady
		repository.Status.LastMaintenanceTime = new(metav1.NewTime(s.clock.Now().Add(-time.Duration(60+random.IntN(600)) * time.Minute)))
		if i < simulatedLimit {
			repository.Spec.VolumeNamespace = terminal
			repository.Status.LastMaintenanceTime = new(metav1.NewTime(s.clock.Now().Add(-1000 * time.Minute)))
		}
		s.write(repository)
	}
	return s
}

// step executes one possible action at random. It returns false if there is none.
func (s *simulation) step() bool {
	var all []func()
	for _, key := range slices.Sorted(maps.Keys(s.enqueued)) {
		all = append(all, func() { s.reconcile(key) })
	}
	if len(s.pendingUpdates) > 0 {
		deliver := func() {
			next := s.pendingUpdates[0]
			s.pendingUpdates = s.pendingUpdates[1:]
			next()
		}
		all = append(all, deliver, deliver, deliver)
	}
	for _, name := range slices.Sorted(maps.Keys(s.jobs)) {
		if len(s.jobs[name].Status.Conditions) == 0 {
			all = append(all, func() { s.end(name) })
		}
	}
	if len(all) == 0 {
		return false
	}
	all[s.random.IntN(len(all))]()
	return true
}

func (s *simulation) reconcile(key string) {
	delete(s.enqueued, key)
	requeue, err := s.m.Reconcile(s.noLog, key)
	if err != nil {
		requeue = time.Second // as the queue does, sooner or later
	}
	if at := s.clock.Now().Add(requeue); requeue > 0 && (s.timers[key].IsZero() || at.Before(s.timers[key])) {
		s.timers[key] = at // like the queue, which never cancels one
	}
}

// end ends a job. At most two runs of each repository fail.
func (s *simulation) end(name string) {
	job, condition := s.jobs[name].DeepCopy(), batchv1.JobComplete
	job.Status.Succeeded = 1
	if repository := s.repositories["velero/"+job.Labels[api.LabelRepository]]; len(repository.Status.RecentMaintenance) < 2 && s.random.IntN(3) == 0 {
		condition, job.Status.Succeeded, job.Status.Failed = batchv1.JobFailed, 0, 1
	}
	job.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(s.clock.Now())}}
	s.writeJob(job)
}

// advance advances the time to the next timer. It returns false if there is none.
func (s *simulation) advance() bool {
	var next time.Time
	for _, at := range s.timers {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if next.IsZero() {
		return false
	}
	s.clock.SetTime(next)
	for key, at := range s.timers {
		if !at.After(next) {
			s.enqueued[key] = true
			delete(s.timers, key)
		}
	}
	return true
}

// overdue returns the repositories that could have been maintained since a time, but were not.
func (s *simulation) overdue(since time.Time) (names []string) {
	for _, repository := range s.repositories {
		if repository.Spec.VolumeNamespace != terminal && repository.Status.LastMaintenanceTime.Time.Before(since) {
			names = append(names, repository.Name)
		}
	}
	return names
}

// TestEveryDueRepositoryIsMaintained runs many orders of actions and events.
func TestEveryDueRepositoryIsMaintained(t *testing.T) {
	seeds.Each(t, 1, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		for range 10 {
			s, toggles := newSimulation(t, random, 20), 4
			began := s.clock.Now()
			for range 20000 {
				if len(s.overdue(began)) == 0 {
					break
				}
				if toggles > 0 && random.IntN(50) == 0 {
					toggles--
					s.readOnly = !s.readOnly
					s.m.Location(&velerov1.BackupStorageLocation{})
				}
				if !s.step() && toggles == 0 {
					require.Truef(t, s.advance(), "nothing will enqueue %v", s.overdue(began))
				}
			}
			require.Empty(t, s.overdue(began))
			require.LessOrEqual(t, s.maxUnfinished, simulatedLimit)
			require.Less(t, s.clock.Since(began), 16*time.Minute, "each waits at most for its own two failures")
		}
	})
}
