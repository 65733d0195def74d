package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// maintained is an environment where Velero's server only initialises and maintains repositories, and the agent runs in this process.
type maintained struct {
	*env
	agent      *fixture.Agent
	repository *velerov1.BackupRepository
	jobs       gate
}

func newMaintained(t *testing.T) *maintained {
	t.Helper()
	s := &maintained{env: newEnv(t), jobs: make(gate, 1)}
	plane, dir := planeOf(t, "velero"), t.TempDir()
	options := fixture.Options{}
	options.RepositoryDir = filepath.Join(dir, "repository")
	require.NoError(t, os.Mkdir(options.RepositoryDir, 0o755))
	runner := node.Real{Config: plane.Admin(), Velero: binary(t, "velero"), Binds: []string{options.RepositoryDir}}
	s.build(t, plane, dir, node.Options{Runner: node.Movers{Runner: runner, Jobs: gated{runner, s.jobs}}}, options)
	s.startServer(t, fixture.ServerOptions{})
	var err error
	s.repository, err = s.Repository(s.ctx, s.Apps) // a server that starts cancels what it finds in progress, so it must be up
	require.NoError(t, err)
	return s
}

// startAgent runs the agent with the rights that package deploy gives it and no others.
func (m *maintained) startAgent(t *testing.T, change ...func(*agent.Options)) {
	t.Helper()
	asUsual := func(options *agent.Options) {
		options.Flags.MaintenanceConcurrency, options.Flags.MaintenanceTimeout, options.Flags.MaintenanceConfigMap = 3, 12*time.Hour, jobConfig
	}
	var err error
	m.agent, err = m.Agent(m.ctx, m.Nodes[0], t.Output(), append([]func(*agent.Options){asUsual}, change...)...)
	require.NoError(t, err)
	m.agent.Run(m.ctx)
	t.Cleanup(func() { require.NoError(t, m.agent.Stop()) })
}

// hourly maintains them every hour, whatever they say themselves.
func hourly(options *agent.Options) { options.Flags.MaintenanceFrequency = time.Hour }

// The server stays as it is, and Lateen comes first, because the server looks only every five minutes.
func TestLateenComesFirstAndAdoptsWhatTheServerHasBegun(t *testing.T) {
	s := newMaintained(t)
	jobs := s.followJobs(t)
	s.jobs.shut()
	s.startAgent(t)
	s.asks(t, s.repository, "24h") // the server looks at each change, and may be late: it must not find the repository due
	other := s.looked(t, "another")
	s.overdue(t, s.repository)
	first := jobs.until(t, func(*batchv1.Job) bool { return true })
	require.True(t, ofLateen(first))
	s.serverWaits(t, first)
	s.jobs.open()
	s.until(t, s.repository, func(r *velerov1.BackupRepository) bool { return has(r, first) })

	require.NoError(t, s.agent.Stop())
	s.jobs.shut()
	s.asks(t, s.repository, "1ms")
	second := jobs.until(t, func(job *batchv1.Job) bool { return !ofLateen(job) })
	require.True(t, maintains(second, s.repository))
	s.asks(t, s.repository, "25h")
	s.overdue(t, other)
	s.startAgent(t)
	jobs.until(t, func(job *batchv1.Job) bool { return maintains(job, other) }) // the agent is at work, and leaves the first one alone
	s.jobs.open()
	s.until(t, s.repository, func(r *velerov1.BackupRepository) bool { return has(r, second) })
}

// TestAJobThatCannotHaveAPodDoesNotBlockTheServer is W39: the server waits for it, and would do so for ever if it were just deleted.
func TestAJobThatCannotHaveAPodDoesNotBlockTheServer(t *testing.T) {
	podless := func(podWait time.Duration) func(*agent.Options) {
		return func(options *agent.Options) {
			options.Flags.MoverServiceAccount = "missing"
			options.Maintenance = maintenance.DefaultPolicy()
			options.Maintenance.PodWait, options.Maintenance.DeleteDelay = podWait, time.Hour // the server sees the end of the job, however slow it is
		}
	}
	s := newMaintained(t)
	jobs := s.followJobs(t)
	s.startAgent(t, hourly, podless(time.Hour))
	s.asks(t, s.repository, "72h") // the server is not to make a job too
	s.overdue(t, s.repository)
	terminal := jobs.until(t, func(*batchv1.Job) bool { return true })
	require.True(t, ofLateen(terminal))
	s.serverWaits(t, terminal)
	require.NoError(t, s.agent.Stop())
	s.startAgent(t, hourly, podless(time.Millisecond))
	s.looked(t, "another")
	jobs.until(t, func(job *batchv1.Job) bool { // nobody deletes it before
		require.Equal(t, terminal.UID, job.UID, "no other job is created")
		require.Nil(t, job.DeletionTimestamp)
		seen := objects.ReadJob(job)
		return seen.Outcome == objects.JobFailed && seen.Counted && seen.Verdict == objects.VerdictFailed
	})
	maintained := s.until(t, s.repository, func(r *velerov1.BackupRepository) bool { return len(r.Status.RecentMaintenance) > 0 })
	require.Len(t, maintained.Status.RecentMaintenance, 1, "by the server and the agent together")
	only := maintained.Status.RecentMaintenance[0]
	require.Equal(t, velerov1.BackupRepositoryMaintenanceFailed, only.Result)
	require.True(t, only.StartTimestamp.Equal(&terminal.CreationTimestamp))
}

// lookInterval is how often the log of Velero's server is read: only there it says that it waits.
const lookInterval = 500 * time.Millisecond

// asks has a repository ask for maintenance so often, by the patch of docs/maintenance.md. Velero's server looks at what is
// changed in this way at once.
func (e *env) asks(t *testing.T, repository *velerov1.BackupRepository, frequency string) {
	t.Helper()
	e.patch(t, repository, map[string]any{"spec": map[string]any{"maintenanceFrequency": frequency}})
}

// overdue has a repository's last maintenance be long ago. Velero's server does not look at what is changed in this way.
func (e *env) overdue(t *testing.T, repository *velerov1.BackupRepository) {
	t.Helper()
	e.patch(t, repository, map[string]any{"status": map[string]any{"lastMaintenanceTime": metav1.NewTime(time.Now().Add(-48 * time.Hour))}})
}

func (e *env) patch(t *testing.T, repository *velerov1.BackupRepository, change map[string]any) {
	t.Helper()
	patch, err := json.Marshal(change)
	require.NoError(t, err)
	_, err = e.Repositories().Patch(e.ctx, repository.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	require.NoError(t, err)
}

// until waits for a repository to be as wanted.
func (e *env) until(t *testing.T, repository *velerov1.BackupRepository, wanted func(*velerov1.BackupRepository) bool) *velerov1.BackupRepository {
	t.Helper()
	found, err := testenv.Wait(e.ctx, e.Repositories(), testenv.Named(repository.Name), wanted)
	require.NoError(t, err)
	return found
}

// looked returns when Velero's server has handled all earlier requests: it has one worker for all repositories,
// which has made this new one Ready.
func (e *env) looked(t *testing.T, volumeNamespace string) *velerov1.BackupRepository {
	t.Helper()
	repository, err := e.Repository(e.ctx, volumeNamespace)
	require.NoError(t, err)
	return repository
}

// serverWaits returns when Velero's server waits for a job of the repository. It is made to look again and again: its
// cache may hear of the job later than we do.
func (m *maintained) serverWaits(t *testing.T, job *batchv1.Job) {
	t.Helper()
	tick := time.NewTicker(lookInterval)
	defer tick.Stop()
	for hours := 73; ; hours++ {
		m.asks(t, m.repository, fmt.Sprintf("%dh", hours))
		select {
		case <-m.ctx.Done():
			require.Failf(t, "Velero's server does not wait for a job", "%s", job.Name)
		case <-tick.C:
		}
		log, err := os.ReadFile(m.serverLog)
		require.NoError(t, err)
		if strings.Contains(string(log), "Waiting for maintenance job "+job.Name) {
			return
		}
	}
}

// jobs are the maintenance jobs of a cluster, from now on.
type jobs struct {
	watch.Interface
	unfinished map[string]string // by repository: the job that has not ended
}

func (e *env) followJobs(t *testing.T) *jobs {
	t.Helper()
	watcher, err := e.Kube.BatchV1().Jobs(e.Namespace).Watch(e.ctx, metav1.ListOptions{LabelSelector: api.LabelRepository})
	require.NoError(t, err)
	t.Cleanup(watcher.Stop)
	return &jobs{Interface: watcher, unfinished: map[string]string{}}
}

// until waits for a job to be as wanted; one that was deleted has a deletionTimestamp. No repository has two that have not ended at any time before.
func (j *jobs) until(t *testing.T, wanted func(*batchv1.Job) bool) *batchv1.Job {
	t.Helper()
	for event := range j.ResultChan() {
		job, ok := event.Object.(*batchv1.Job)
		require.True(t, ok, "%v", event)
		repository := job.Labels[api.LabelRepository]
		if event.Type == watch.Deleted && job.DeletionTimestamp == nil {
			job.DeletionTimestamp = new(metav1.Now())
		}
		finished := event.Type == watch.Deleted || objects.ReadJob(job).Outcome != objects.JobUnfinished
		switch other := j.unfinished[repository]; {
		case finished && other == job.Name:
			delete(j.unfinished, repository)
		case !finished:
			require.Contains(t, []string{"", job.Name}, other, "repository %s has a second job", repository)
			j.unfinished[repository] = job.Name
		}
		if wanted(job) {
			return job
		}
	}
	require.Fail(t, "no such job")
	return nil
}

// ofLateen reports whether Lateen has created a job.
func ofLateen(job *batchv1.Job) bool { return job.Annotations[api.AnnotationRepositoryUID] != "" }

// maintains reports whether a job is one of a repository.
func maintains(job *batchv1.Job, repository *velerov1.BackupRepository) bool {
	return job.Labels[api.LabelRepository] == objects.RepositoryLabel(repository.Name)
}

// has reports whether a repository remembers a job as a success.
func has(repository *velerov1.BackupRepository, job *batchv1.Job) bool {
	for _, run := range repository.Status.RecentMaintenance {
		if run.StartTimestamp.Equal(&job.CreationTimestamp) && run.Result == velerov1.BackupRepositoryMaintenanceSucceeded {
			return true
		}
	}
	return false
}
