package maintenance

import (
	"fmt"
	"time"

	"github.com/lateen-project/lateen/exposer/build"
)

// now is when everything is looked at.
func now() time.Time { return time.Unix(1764000000, 0) }

func ago(d time.Duration) time.Time { return now().Add(-d) }

// policy is the default, but for the spread, which would hide the exact times.
func policy() Policy {
	p := DefaultPolicy()
	p.MaxJitter = 0
	return p
}

func ready() Repository {
	return Repository{UID: "6f1c", Kopia: true, Ready: true, Created: ago(100 * time.Hour), Last: ago(2 * time.Hour), Frequency: time.Hour}
}

func there() Location { return Location{Exists: true} }

// job is one of ours, which is recorded if it has ended.
func job(created time.Time, outcome build.JobOutcome) build.JobStatus {
	observed := build.JobStatus{Name: fmt.Sprint("job-", created.Unix()), Created: created, Outcome: outcome, HasPod: true, Ours: true, Limited: true}
	observed.Factor = 1
	if outcome != build.JobUnfinished {
		observed.Counted, observed.Finished, observed.Verdict = true, created.Add(time.Minute), build.VerdictSucceeded
	}
	observed.Since = created
	if outcome != build.JobUnfinished {
		observed.Since = observed.Finished
	}
	if outcome == build.JobFailed {
		observed.Verdict = build.VerdictFailed
	}
	return observed
}

// unrecorded is a job that nobody has looked at since it ended.
func unrecorded(job build.JobStatus) build.JobStatus {
	job.Verdict = ""
	return job
}

// recorded is one that has not ended, and was given up.
func recorded(job build.JobStatus) build.JobStatus {
	job.Verdict = build.VerdictFailed
	return job
}

// endedNow is one that was given up now, by the clock by which it was created.
func endedNow(job build.JobStatus) build.JobStatus {
	job.Finished = job.Created.Add(now().Sub(job.Since))
	return job
}

// skewed is one whose timestamps are of a clock that is so much ahead.
func skewed(ahead time.Duration, job build.JobStatus) build.JobStatus {
	job.Created = job.Created.Add(ahead)
	return job
}

// pending is one whose pod has not run for so long.
func pending(since time.Duration) build.JobStatus {
	job := job(ago(since), build.JobUnfinished)
	job.Pending = true
	return job
}

// unlimited is one of Velero's server, which has run for so long.
func unlimited(since time.Duration) build.JobStatus {
	job := job(ago(since), build.JobUnfinished)
	job.Ours, job.Limited = false, false
	return job
}

// of is a job about which something else is recorded.
func of(verdict build.Verdict, failures int, factor float64, job build.JobStatus) build.JobStatus {
	job.JobRecord = build.JobRecord{Verdict: verdict, Failures: failures, Factor: factor}
	return job
}

func failed(started time.Time, message string) Run {
	return Run{Started: started, Failed: true, Message: message}
}
