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

// yard simulates a cluster with due repositories. Its jobs end at any time, and its caches lag behind.
type yard struct {
	*testing.T
	quiet  context.Context // discards the log
	random *rand.Rand
	clock  *testclock.FakePassiveClock
	client *fake.Clientset
	m      *Reconciler

	version      int
	repositories map[string]*velerov1.BackupRepository // as written
	jobs         map[string]*batchv1.Job
	seen         map[string]*velerov1.BackupRepository // as cached
	seenJobs     map[string]*batchv1.Job
	late         []func() // pending cache updates, in this order
	woken        map[string]bool
	timers       map[string]time.Time
	readOnly     bool // the location is read-only
	most         int  // maximum of unfinished jobs at once
}

// The caches and the client of a yard, as a Reconciler needs them.
type (
	yardRepositories struct{ *yard }
	yardLocations    struct{ *yard }
	yardJobs         struct{ *yard }
)

func (y yardRepositories) Get(key string) (*velerov1.BackupRepository, bool) {
	found, ok := y.seen[key]
	return found, ok
}

func (y yardRepositories) List() []*velerov1.BackupRepository {
	return slices.Collect(maps.Values(y.seen))
}

func (y yardLocations) Get(string) (*velerov1.BackupStorageLocation, bool) {
	location := &velerov1.BackupStorageLocation{}
	if y.readOnly {
		location.Spec.AccessMode = velerov1.BackupStorageLocationAccessModeReadOnly
	}
	return location, true
}

func (y yardJobs) List() []*batchv1.Job { return slices.Collect(maps.Values(y.seenJobs)) }

// Patch implements Patcher.
func (y yardRepositories) Patch(_ context.Context, name string, _ types.PatchType, data []byte, _ metav1.PatchOptions, _ ...string) (*velerov1.BackupRepository, error) {
	key := "velero/" + name
	changed := y.repositories[key].DeepCopy()
	changed.Status.RecentMaintenance = nil
	if err := json.Unmarshal(data, changed); err != nil {
		return nil, err
	}
	y.write(changed)
	return changed, nil
}

func (y *yard) next() string {
	y.version++
	return strconv.Itoa(y.version)
}

func (y *yard) write(repository *velerov1.BackupRepository) {
	key := "velero/" + repository.Name
	repository.ResourceVersion = y.next()
	y.repositories[key] = repository
	y.late = append(y.late, func() {
		y.seen[key] = repository
		y.m.Enqueue(key)
	})
}

// writeJob writes a job to the API server, and later to the caches.
func (y *yard) writeJob(job *batchv1.Job) {
	job.ResourceVersion = y.next()
	y.jobs[job.Name] = job
	y.late = append(y.late, func() {
		y.seenJobs[job.Name] = job
		y.m.Job(job)
	})
	unfinished := 0
	for _, one := range y.jobs {
		if len(one.Status.Conditions) == 0 {
			unfinished++
		}
	}
	y.most = max(y.most, unfinished)
}

const (
	yardLimit = 3          // jobs that may run at once
	hopeless  = "hopeless" // namespace of as many repositories, the longest due; their jobs can never be created
)

func newYard(t *testing.T, random *rand.Rand, count int) *yard {
	t.Helper()
	y := &yard{
		T: t, quiet: klog.NewContext(t.Context(), klog.Logger{}), random: random, clock: testclock.NewFakePassiveClock(time.Unix(1764000000, 0)), client: fake.NewClientset(),
		repositories: map[string]*velerov1.BackupRepository{}, jobs: map[string]*batchv1.Job{},
		seen: map[string]*velerov1.BackupRepository{}, seenJobs: map[string]*batchv1.Job{},
		woken: map[string]bool{}, timers: map[string]time.Time{},
	}
	y.client.PrependReactor("create", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
		job := action.(clienttesting.CreateAction).GetObject().(*batchv1.Job).DeepCopy()
		require.NotContains(t, y.jobs, job.Name, "a job is made again")
		job.UID, job.CreationTimestamp = types.UID(job.Name), metav1.NewTime(y.clock.Now())
		y.writeJob(job)
		return true, job, nil
	})
	y.client.PrependReactor("delete", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name := action.(clienttesting.DeleteAction).GetName()
		deleted := y.jobs[name]
		require.NotNil(t, deleted, "a job is deleted again")
		delete(y.jobs, name)
		y.late = append(y.late, func() {
			delete(y.seenJobs, name)
			y.m.Job(deleted)
		})
		return true, nil, nil
	})
	policy := maintenance.DefaultPolicy()
	policy.PodWait = 24 * time.Hour // pods are also late here
	y.m = &Reconciler{
		Repositories: yardRepositories{y}, Locations: yardLocations{y}, Jobs: yardJobs{y}, Client: yardRepositories{y},
		JobClient: exposer.Jobs{Client: y.client}, Enqueue: func(key string) { y.woken[key] = true },
		Plan: func(_ context.Context, repository *velerov1.BackupRepository) (JobPlan, error) {
			if repository.Spec.VolumeNamespace == hopeless || random.IntN(4) == 0 {
				return JobPlan{}, errors.New("the API server has no answer")
			}
			return JobPlan{Created: func() {}}, nil
		},
		Policy: policy, Limit: yardLimit, Recorder: &record.FakeRecorder{}, Clock: y.clock,
	}
	for i := range count {
		repository := &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{Namespace: "velero", Name: fmt.Sprint("r", i), UID: types.UID(fmt.Sprint(i))}}
		repository.Spec.RepositoryType, repository.Spec.MaintenanceFrequency.Duration = "kopia", time.Hour
		repository.Status.Phase = velerov1.BackupRepositoryPhaseReady
		repository.Status.LastMaintenanceTime = new(metav1.NewTime(y.clock.Now().Add(-time.Duration(60+random.IntN(600)) * time.Minute)))
		if i < yardLimit {
			repository.Spec.VolumeNamespace = hopeless
			repository.Status.LastMaintenanceTime = new(metav1.NewTime(y.clock.Now().Add(-1000 * time.Minute)))
		}
		y.write(repository)
	}
	return y
}

// step executes one possible action at random. It returns false if there is none.
func (y *yard) step() bool {
	var all []func()
	for _, key := range slices.Sorted(maps.Keys(y.woken)) {
		all = append(all, func() { y.reconcile(key) })
	}
	if len(y.late) > 0 {
		hear := func() {
			next := y.late[0]
			y.late = y.late[1:]
			next()
		}
		all = append(all, hear, hear, hear)
	}
	for _, name := range slices.Sorted(maps.Keys(y.jobs)) {
		if len(y.jobs[name].Status.Conditions) == 0 {
			all = append(all, func() { y.end(name) })
		}
	}
	if len(all) == 0 {
		return false
	}
	all[y.random.IntN(len(all))]()
	return true
}

func (y *yard) reconcile(key string) {
	delete(y.woken, key)
	requeue, err := y.m.Reconcile(y.quiet, key)
	if err != nil {
		requeue = time.Second // as the queue does, sooner or later
	}
	if at := y.clock.Now().Add(requeue); requeue > 0 && (y.timers[key].IsZero() || at.Before(y.timers[key])) {
		y.timers[key] = at // like the queue, which never cancels one
	}
}

// end ends a job. At most two runs of each repository fail.
func (y *yard) end(name string) {
	job := y.jobs[name].DeepCopy()
	condition := batchv1.JobComplete
	job.Status.Succeeded = 1
	repository := y.repositories["velero/"+job.Labels[api.LabelRepository]]
	if len(repository.Status.RecentMaintenance) < 2 && y.random.IntN(3) == 0 {
		condition, job.Status.Succeeded, job.Status.Failed = batchv1.JobFailed, 0, 1
	}
	job.Status.Conditions = []batchv1.JobCondition{{Type: condition, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(y.clock.Now())}}
	y.writeJob(job)
}

// pass advances the time to the next timer. It returns false if there is none.
func (y *yard) pass() bool {
	var next time.Time
	for _, at := range y.timers {
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	if next.IsZero() {
		return false
	}
	y.clock.SetTime(next)
	for key, at := range y.timers {
		if !at.After(next) {
			y.woken[key] = true
			delete(y.timers, key)
		}
	}
	return true
}

// behind returns the repositories that could have been maintained since a time, but were not.
func (y *yard) behind(since time.Time) (names []string) {
	for _, repository := range y.repositories {
		if repository.Spec.VolumeNamespace != hopeless && repository.Status.LastMaintenanceTime.Time.Before(since) {
			names = append(names, repository.Name)
		}
	}
	return names
}

// TestNoRepositoryWaitsForATurnThatNeverComes runs many orders of actions and events.
func TestNoRepositoryWaitsForATurnThatNeverComes(t *testing.T) {
	seeds.Each(t, 1, func(t *testing.T, random *rand.Rand) {
		t.Helper()
		for range 10 {
			y := newYard(t, random, 20)
			began := y.clock.Now()
			toggles := 4
			for range 20000 {
				if len(y.behind(began)) == 0 {
					break
				}
				if toggles > 0 && random.IntN(50) == 0 {
					toggles--
					y.readOnly = !y.readOnly
					y.m.Location(&velerov1.BackupStorageLocation{})
				}
				if !y.step() && toggles == 0 {
					require.Truef(t, y.pass(), "nothing will ever wake %v", y.behind(began))
				}
			}
			require.Empty(t, y.behind(began))
			require.LessOrEqual(t, y.most, yardLimit)
			require.Less(t, y.clock.Since(began), 16*time.Minute, "each waits for no more than its own two failures")
		}
	})
}
