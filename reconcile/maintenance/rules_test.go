package maintenance

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/objects"
)

// TestRules verifies the invariants for every combination of repository, location, jobs and history.
func TestRules(t *testing.T) {
	count := 0
	for _, r := range repositories() {
		for _, location := range []Location{{}, {Exists: true}, {Exists: true, ReadOnly: true}} {
			for _, first := range someJobs() {
				for _, second := range someJobs() {
					jobs := slices.Concat(first, second)
					count++
					step := Next(r, jobs, location, policy(), now())
					rules(t, situation{step, r, location, jobs})
				}
			}
		}
	}
	require.Greater(t, count, 5000)
}

// TestAJobWithoutARepositoryIsDeletedAfterTheDelayOnly verifies DeleteDelay for every pair of jobs.
func TestAJobWithoutARepositoryIsDeletedAfterTheDelayOnly(t *testing.T) {
	for _, first := range someJobs() {
		for _, second := range someJobs() {
			jobs := slices.Concat(first, second)
			step := WithoutRepository(jobs, policy(), now())
			require.Contains(t, []Action{Wait, MarkFailed, Delete}, step.Action)
			for _, one := range step.Jobs {
				require.False(t, one.Deleting, "%+v", jobs)
				require.Equal(t, step.Action == MarkFailed, !one.Counted, "%+v", jobs)
				require.False(t, one.Stage() == objects.StageRunning || one.Stage() == objects.StageRetained, "it runs: %+v", jobs)
			}
			ended := len(undeleted(withOutcome(jobs, objects.JobSucceeded, objects.JobFailed))) > 0
			require.False(t, ended && step.Action == Wait && step.After == 0, "it would never be deleted: %+v", jobs)
		}
	}
}

// situation is one combination and the step taken in it.
type situation struct {
	step       Step
	repository Repository
	location   Location
	jobs       []objects.JobStatus
}

func rules(t *testing.T, what situation) {
	t.Helper()
	step, r, location, jobs := what.step, what.repository, what.location, what.jobs
	unfinished := withOutcome(jobs, objects.JobUnfinished)
	foreign := !r.Kopia || r.Deleting
	if foreign {
		require.Equal(t, Wait, step.Action, "%+v", what)
		require.Zero(t, step.After, "%+v", what)
	}
	switch step.Action {
	case Start:
		require.True(t, r.Ready && location.Exists && !location.ReadOnly, "%+v", what)
		require.Empty(t, unfinished, "there is never a second job: %+v", what)
		require.False(t, step.Due.After(now()), "%+v", what)
		require.True(t, step.Factor >= 1 && step.Factor <= maxFactor, "%+v", what)
	case Record:
		for _, one := range step.Jobs {
			require.NotEqual(t, objects.JobUnfinished, one.Outcome, "%+v", what)
			require.Empty(t, one.Verdict, "nothing is recorded twice: %+v", what)
		}
		require.Len(t, step.Jobs, 1, "%+v", what)
	case Abandon, MarkFailed, Delete:
		require.NotEmpty(t, step.Jobs, "%+v", what)
		for _, one := range step.Jobs {
			require.Equal(t, step.Action != Abandon, one.Verdict != "", "a job is recorded before its deletion: %+v", what)
			require.False(t, step.Action == Delete && !one.Counted, "a server may wait for it without end: %+v", what)
			require.False(t, step.Action == MarkFailed && one.Counted, "%+v", what)
			require.NotContains(t, []objects.JobStage{objects.StageRunning, objects.StageReleased, objects.StageRetained}, one.Stage(), "no job that runs is removed: %+v", what)
			require.False(t, one.Outcome == objects.JobUnfinished && one.Since.After(ago(policy().limit(one))), "%+v", what)
			require.False(t, one.Deleting, "%+v", what)
		}
	case Wait:
		idle := foreign || !r.Ready || !location.Exists || location.ReadOnly
		if !idle && len(unfinished) == 0 {
			require.Positive(t, step.After, "an unblocked repository has a next time: %+v", what)
		}
		if idle && !foreign && step.Reason != AlreadyRunning {
			require.NotEmpty(t, step.Reason, "a blocked repository has a reason: %+v", what)
		}
	}
}

func repositories() []Repository {
	var all []Repository
	for _, kopia := range []bool{true, false} {
		for _, ready := range []bool{true, false} {
			for _, deleting := range []bool{false, true} {
				for _, last := range []time.Time{{}, ago(2 * time.Hour), ago(time.Minute)} {
					for _, history := range [][]Run{
						nil,
						{{Started: ago(2 * time.Hour), Completed: ago(2 * time.Hour)}},
						{failed(ago(3*time.Minute), "")},
						{failed(ago(3*time.Hour), ""), failed(ago(2*time.Hour), "")},
					} {
						all = append(all, Repository{
							UID: "u", Kopia: kopia, Ready: ready, Deleting: deleting, Created: ago(9 * time.Hour),
							Last: last, Frequency: time.Hour, History: history,
						})
					}
				}
			}
		}
	}
	return all
}

// someJobs returns an empty list and one list for each sort of job.
func someJobs() [][]objects.JobStatus {
	all := [][]objects.JobStatus{nil}
	for _, created := range []time.Time{ago(time.Minute), ago(3 * time.Minute), ago(2 * time.Hour)} {
		for _, outcome := range []objects.JobOutcome{objects.JobUnfinished, objects.JobSucceeded, objects.JobFailed} {
			for _, deleting := range []bool{false, true} {
				one := job(created, outcome)
				one.Deleting, one.HasPod = deleting, outcome != objects.JobUnfinished
				all = append(all, []objects.JobStatus{one}, []objects.JobStatus{unrecorded(one)})
				if outcome == objects.JobFailed {
					one.Counted, one.HasPod = false, false
					all = append(all, []objects.JobStatus{of(objects.VerdictOutOfMemory, 2, 2.25, one)})
				}
				if outcome == objects.JobUnfinished {
					one.HasPod = true
					all = append(all, []objects.JobStatus{one})
					one.Terminating = created.Add(-time.Hour) // in another clock
					all = append(all, []objects.JobStatus{one})
					all = append(all, []objects.JobStatus{recorded(one)})
					one.Counted, one.Released = true, created
					all = append(all, []objects.JobStatus{recorded(one)})
				}
			}
		}
	}
	return all
}

// The bounds may be short. A released job with a pod that has not terminated is kept until Velero's server can
// observe it.
func TestAFailedJobIsDeletedAfterTheDelayOnly(t *testing.T) {
	bounds := policy()
	bounds.PodWait = time.Millisecond
	left := recorded(job(ago(time.Minute), objects.JobUnfinished))
	left.Counted, left.Released, left.Terminating, left.Since = true, ago(9*time.Second), ago(9*time.Second), ago(9*time.Second)
	require.Equal(t, objects.StageAbandoned, left.Stage())
	require.Equal(t, Step{Reason: AlreadyRunning, After: time.Second}, Next(ready(), []objects.JobStatus{left}, existing(), bounds, now()))
	left.Since = ago(bounds.DeleteDelay)
	require.Equal(t, Step{Action: Delete, Jobs: []objects.JobStatus{left}}, Next(ready(), []objects.JobStatus{left}, existing(), bounds, now()))
}
