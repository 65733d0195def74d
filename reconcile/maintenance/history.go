package maintenance

import (
	"slices"
	"strings"
	"time"

	"github.com/lateen-project/lateen/exposer/build"
)

// ClassGone begins the message of a run that had no pod because its PriorityClass does not exist: the next one
// is made without it, and at once.
const ClassGone = "the PriorityClass of its job does not exist: "

// OutOfMemory is in the message of a run whose pod was ended for the memory it took (the kubelet's word).
const OutOfMemory = "OOMKilled"

// RunOf is the entry of a job that has ended, or was given up, when job.Ended says. Why is why it failed; how long it
// took is in the message of a run that failed too, for want of a field.
func RunOf(job build.JobSeen, why string) Run {
	if job.Outcome == build.JobSucceeded {
		return Run{Started: job.Created, Completed: job.Ended}
	}
	return Run{Started: job.Created, Failed: true, Message: why + " (after " + job.Ended.Sub(job.Created).Round(time.Second).String() + ")"}
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

// remembers tells whether nothing is left to write down of a job: its run is in the history, or would not be
// kept there.
func (r Repository) remembers(job build.JobSeen) bool {
	full := len(r.History) >= HistoryLength
	return r.has(job.Created) || full && job.Created.Before(r.History[0].Started)
}

// failures are the runs that failed since the last success, oldest first.
func (r Repository) failures() []Run {
	last := len(r.History)
	for last > 0 && r.History[last-1].Failed {
		last--
	}
	return r.History[last:]
}

// classGone tells whether the last run had no pod for want of its class, and the one before had another fate:
// a class that comes and goes must not make jobs without end.
func classGone(failures []Run) bool {
	n := len(failures)
	gone := func(run Run) bool { return strings.HasPrefix(run.Message, ClassGone) }
	return n > 0 && gone(failures[n-1]) && (n == 1 || !gone(failures[n-2]))
}
