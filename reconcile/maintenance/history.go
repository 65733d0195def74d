package maintenance

import (
	"slices"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// RunOf is the entry of a job that has ended, or was given up, when job.Ended says. Why is why it failed; how long it
// took is in the message of a run that failed too, for want of a field.
func RunOf(job objects.JobStatus, why string) Run {
	if job.Outcome == objects.JobSucceeded {
		return Run{Started: job.Created, Completed: job.Finished}
	}
	return Run{Started: job.Created, Failed: true, Message: why + " (after " + job.Finished.Sub(job.Created).Round(time.Second).String() + ")"}
}

// With is the repository with further runs in its history. A run that it has is the one that began in the same
// second; only the newest HistoryLength are kept.
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

// failures are the runs that failed since the last success, oldest first.
func (r Repository) failures() []Run {
	last := len(r.History)
	for last > 0 && r.History[last-1].Failed {
		last--
	}
	return r.History[last:]
}

// tally is what the runs of a repository so far mean for its next job.
type tally struct {
	failures int     // in a row
	factor   float64 // of memory
}

// after is the tally after a job that is recorded.
func after(job objects.JobStatus) tally {
	t := tally{failures: job.Failures, factor: job.Factor}
	if !job.Verdict.Failed() {
		t.failures = 0
		return t
	}
	t.failures++
	switch {
	case job.Verdict != objects.VerdictOutOfMemory:
	case job.Ours:
		t.factor = min(t.factor*memoryStep, maxFactor)
	default: // it had no more than what is configured
		t.factor = max(t.factor, memoryStep)
	}
	return t
}

// tallyBefore is the tally before a job, of all that there are, oldest first. Ours say it themselves, as older ones may have
// been deleted.
func (r Repository) tallyBefore(job objects.JobStatus, jobs []objects.JobStatus) tally {
	if job.Ours {
		return tally{failures: job.Failures, factor: job.Factor}
	}
	older := slices.DeleteFunc(slices.Clone(jobs), func(one objects.JobStatus) bool { return !one.Created.Before(job.Created) })
	return r.tallyAfter(older)
}

// FailuresAfter is how often maintenance has failed in a row, after all jobs that there are, oldest first.
func (r Repository) FailuresAfter(jobs []objects.JobStatus) int { return r.tallyAfter(jobs).failures }

// tallyAfter is the tally after all jobs, oldest first. The history and what this process counted matter where there was no
// job, or where it is gone: Velero's server keeps 3 entries, and replaces messages.
func (r Repository) tallyAfter(jobs []objects.JobStatus) tally {
	t := tally{factor: 1}
	for _, job := range slices.Backward(jobs) {
		if job.Verdict != "" {
			t = after(job)
			break
		}
	}
	t.failures = max(t.failures, len(r.failures()), r.Failures)
	return t
}
