package maintenance

import (
	"slices"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Factors of the memory limit after a run that was OOMKilled.
const (
	memoryStep = 1.5
	maxFactor  = 4.
)

// RunOf returns the history entry of a finished or abandoned job; job.Finished is its end. why is the reason of a
// failure. The message of a failed run also contains its duration, because the entry has no field for it.
func RunOf(job objects.JobStatus, why string) Run {
	if job.Outcome == objects.JobSucceeded {
		return Run{Started: job.Created, Completed: job.Finished}
	}
	return Run{Started: job.Created, Failed: true, Message: why + " (after " + job.Finished.Sub(job.Created).Round(time.Second).String() + ")"}
}

// With returns the repository with more runs in its history. Two runs that started in the same second are the same
// run. It keeps only the newest HistoryLength runs.
func (r Repository) With(runs ...Run) Repository {
	r.History = slices.Clone(r.History)
	for _, run := range runs {
		if !r.has(run.Started) {
			r.History = append(r.History, run)
		}
		if !run.Failed && run.Completed.After(r.Last) {
			r.Last = run.Completed
		}
	}
	slices.SortStableFunc(r.History, func(a, b Run) int { return a.Started.Compare(b.Started) })
	r.History = r.History[max(0, len(r.History)-HistoryLength):]
	return r
}

func (r Repository) has(started time.Time) bool {
	return slices.ContainsFunc(r.History, func(run Run) bool { return run.Started.Unix() == started.Unix() })
}

// failures returns the failed runs since the last success, oldest first.
func (r Repository) failures() []Run {
	last := len(r.History)
	for last > 0 && r.History[last-1].Failed {
		last--
	}
	return r.History[last:]
}

// counts is what the previous runs of a repository imply for its next job.
type counts struct {
	failures int     // consecutive
	factor   float64 // of the memory limit
}

// after returns the counts after a recorded job.
func after(job objects.JobStatus) counts {
	t := counts{failures: job.Failures, factor: job.Factor}
	if !job.Verdict.Failed() {
		t.failures = 0
		return t
	}
	t.failures++
	switch {
	case job.Verdict != objects.VerdictOutOfMemory:
	case job.Ours:
		t.factor = min(t.factor*memoryStep, maxFactor)
	default: // it had the configured limit
		t.factor = max(t.factor, memoryStep)
	}
	return t
}

// countsBefore returns the counts before a job, from all existing jobs, oldest first. Lateen's jobs carry it in
// annotations, because older jobs may have been deleted.
func (r Repository) countsBefore(job objects.JobStatus, jobs []objects.JobStatus) counts {
	if job.Ours {
		return counts{failures: job.Failures, factor: job.Factor}
	}
	older := slices.DeleteFunc(slices.Clone(jobs), func(one objects.JobStatus) bool { return !one.Created.Before(job.Created) })
	return r.countsAfter(older)
}

// FailuresAfter returns the number of consecutive failures after all existing jobs, oldest first.
func (r Repository) FailuresAfter(jobs []objects.JobStatus) int { return r.countsAfter(jobs).failures }

// countsAfter returns the counts after all jobs, oldest first. The history and the count of this process cover
// failures without a job and deleted jobs. The history alone is not enough: Velero's server keeps 3 entries and
// replaces messages.
func (r Repository) countsAfter(jobs []objects.JobStatus) counts {
	t := counts{factor: 1}
	for _, job := range slices.Backward(jobs) {
		if job.Verdict != "" {
			t = after(job)
			break
		}
	}
	t.failures = max(t.failures, len(r.failures()), r.Failures)
	return t
}
