package maintenance

import (
	"fmt"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
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
func job(created time.Time, outcome objects.JobOutcome) objects.JobStatus {
	observed := objects.JobStatus{Name: fmt.Sprint("job-", created.Unix()), Created: created, Outcome: outcome, HasPod: true, Ours: true, Limited: true}
	observed.Factor = 1
	if outcome != objects.JobUnfinished {
		observed.Counted, observed.Finished, observed.Verdict = true, created.Add(time.Minute), objects.VerdictSucceeded
	}
	observed.Since = created
	if outcome != objects.JobUnfinished {
		observed.Since = observed.Finished
	}
	if outcome == objects.JobFailed {
		observed.Verdict = objects.VerdictFailed
	}
	return observed
}

// unrecorded is a job that nobody has looked at since it ended.
func unrecorded(job objects.JobStatus) objects.JobStatus {
	job.Verdict = ""
	return job
}

// recorded is one that has not ended, and was given up.
func recorded(job objects.JobStatus) objects.JobStatus {
	job.Verdict = objects.VerdictFailed
	return job
}

// endedNow is one that was given up now, by the clock by which it was created.
func endedNow(job objects.JobStatus) objects.JobStatus {
	job.Finished = job.Created.Add(now().Sub(job.Since))
	return job
}

// skewed is one whose timestamps are of a clock that is so much ahead.
func skewed(ahead time.Duration, job objects.JobStatus) objects.JobStatus {
	job.Created = job.Created.Add(ahead)
	return job
}

// pending is one whose pod has not run for so long.
func pending(since time.Duration) objects.JobStatus {
	job := job(ago(since), objects.JobUnfinished)
	job.Pending = true
	return job
}

// unlimited is one of Velero's server, which has run for so long.
func unlimited(since time.Duration) objects.JobStatus {
	job := job(ago(since), objects.JobUnfinished)
	job.Ours, job.Limited = false, false
	return job
}

// of is a job about which something else is recorded.
func of(verdict objects.Verdict, failures int, factor float64, job objects.JobStatus) objects.JobStatus {
	job.JobRecord = objects.JobRecord{Verdict: verdict, Failures: failures, Factor: factor}
	return job
}

func failed(started time.Time, message string) Run {
	return Run{Started: started, Failed: true, Message: message}
}
