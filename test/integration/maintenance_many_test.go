package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
)

// leaving is how a coordinator leaves its work in the middle. Each returns how the agent is made, what has it go, and
// what happens once another one coordinates.
func leaving() map[string]func(*env) (change func(*agent.Options), leave func(*agentRun), after func()) {
	return map[string]func(*env) (func(*agent.Options), func(*agentRun), func()){
		"ends": func(*env) (func(*agent.Options), func(*agentRun), func()) {
			return func(*agent.Options) {}, func(first *agentRun) { first.stop() }, func() {}
		},
		"is killed, and its term runs out": func(s *env) (func(*agent.Options), func(*agentRun), func()) {
			k := newKiller(16, true) // at the latest after 12 new jobs and two runs, each written into the history and on its job
			return fixture.Through(k.wrap), func(first *agentRun) {
				s.await(k.struck, "the write at which the agent is killed")
				first.Cancel() // nothing of it gets through any more
				first.wait()
			}, func() {}
		},
		"is cut off, and comes back": func(s *env) (func(*agent.Options), func(*agentRun), func()) {
			gate, err := s.gate()
			require.NoError(s, err)
			s.Cleanup(func() { require.NoError(s, gate.Stop()) })
			return func(options *agent.Options) { options.Rest = gate.Config(options.Rest) },
				func(*agentRun) { require.NoError(s, gate.Close()) },
				func() { require.NoError(s, gate.Open(s.Context())) }
		},
	}
}

// TestManyRepositoriesTakeTurns has the coordinator leave in the middle, with jobs that run on without one.
func TestManyRepositoriesTakeTurns(t *testing.T) {
	t.Parallel()
	for name, prepare := range leaving() {
		t.Run("a coordinator "+name, func(t *testing.T) {
			s := newEnv(t, time.Millisecond)
			s.configureJobs("")
			s.jobsEnd(node.Result{}, 0)
			seen := s.watchJobs()
			names := s.manyRepositories(12)
			change, leave, after := prepare(s)
			first := s.start(maintains, shortTerm, change)
			term := s.coordinator("")
			waitFor(s, s.Repositories(), metav1.ListOptions{}, ran(1)) // of any of them
			leave(first)
			second := s.start(maintains, shortTerm)
			s.coordinator(term)
			after()
			s.eachMaintainedOnce(names)
			most, mostOfOne := seen()
			require.LessOrEqual(t, most, 3)
			require.Equal(t, 1, mostOfOne)
			require.Zero(t, second.metric("lateen_maintenance_due"))
		})
	}
}

// manyRepositories makes repositories that are due, and returns their names, the one that has been due for longest first.
func (s *env) manyRepositories(count int) (names []string) {
	for i := range count {
		names = append(names, s.repository(fmt.Sprintf("app-default-kopia-%05d", i), func(r *velerov1.BackupRepository) {
			r.Status.LastMaintenanceTime = new(metav1.NewTime(time.Now().Add(-time.Duration(100-i) * time.Hour)))
		}))
	}
	return names
}

// eachMaintainedOnce waits until all are, and looks whether that was in their order, but for those that began together.
func (s *env) eachMaintainedOnce(names []string) {
	var began []time.Time
	for _, name := range names {
		repository := s.maintained(name, ran(1))
		require.Len(s, repository.Status.RecentMaintenance, 1, name)
		run := repository.Status.RecentMaintenance[0]
		require.Equal(s, velerov1.BackupRepositoryMaintenanceSucceeded, run.Result)
		require.Equal(s, run.CompleteTimestamp, repository.Status.LastMaintenanceTime)
		overtaken := slices.DeleteFunc(slices.Clone(began), func(at time.Time) bool { return !run.StartTimestamp.Time.Before(at) })
		require.Less(s, len(overtaken), 3, "who has been due for longer comes first")
		began = append(began, run.StartTimestamp.Time)
	}
	require.Len(s, s.jobs(), len(names), "no repository was maintained twice")
}

// TestJobsWithoutARepositoryTakeNoPlaceAndAreDeleted has jobs that will never have a pod.
func TestJobsWithoutARepositoryTakeNoPlaceAndAreDeletedOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.configureJobs("")
	s.jobsEnd(node.Result{}, 0)
	for _, deleted := range []string{"a", "b", "c"} {
		s.serverJob(deleted, "gone-"+s.Namespace, s.node.Name())
	}
	name := s.repository("app-default-kopia-x7k2p")
	s.start(maintains)
	s.maintained(name, ran(1))
	s.haveLeft(1)
}

func TestTheBlockerOfAJobIsReportedOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.refusal = true
	s.configureJobs(`"priorityClassName":"nowhere"`)
	s.jobsEnd(node.Result{}, 0)
	s.limit("none", "count/jobs.batch")
	name := s.repository("app-default-kopia-x7k2p")
	r := s.start(maintains)
	s.says("MaintenanceSkipped", "exceeded quota: none")
	require.Zero(t, r.metric("lateen_priority_class_fallbacks_total", "consumer", "maintenance-job"), "no job is without its class")
	s.lift()
	s.maintained(name, ran(1))
	s.says("MaintenanceSucceeded", "succeeded")
	require.Equal(t, 1, r.metric("lateen_priority_class_fallbacks_total", "consumer", "maintenance-job"))
}

// TestARunThatEndedWithoutACoordinatorIsWrittenDown adopts the job of a Velero server.
func TestARunThatEndedWithoutACoordinatorIsWrittenDown(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.configureJobs("")
	s.jobsEnd(node.Result{}, 0)
	name := s.repository("app-default-kopia-x7k2p")
	s.serverJob(name, "", s.node.Name())
	theirs := s.job(func(job *batchv1.Job) bool { return objects.ReadJob(job).Outcome == objects.JobSucceeded })
	s.start(maintains)
	after := s.maintained(name, ran(1))
	require.True(t, theirs.Status.CompletionTime.Equal(after.Status.LastMaintenanceTime))
	require.Len(t, s.jobs(), 1, "what the server has done is not done again")
}
