package maintenance

import (
	"fmt"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// now is the current time of all tests.
func now() time.Time { return time.Unix(1764000000, 0) }

func ago(d time.Duration) time.Time { return now().Add(-d) }

// policy is the default without jitter, which would hide the exact times.
func policy() Policy {
	p := DefaultPolicy()
	p.MaxJitter = 0
	return p
}

func ready() Repository {
	return Repository{UID: "6f1c", Kopia: true, Ready: true, Created: ago(100 * time.Hour), Last: ago(2 * time.Hour), Frequency: time.Hour}
}

func existing() Location { return Location{Exists: true} }

// job is a job of Lateen, recorded if it is finished.
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

// unrecorded returns a job whose result is not recorded yet.
func unrecorded(job objects.JobStatus) objects.JobStatus {
	job.Verdict = ""
	return job
}

// recorded returns an unfinished job that was abandoned.
func recorded(job objects.JobStatus) objects.JobStatus {
	job.Verdict = objects.VerdictFailed
	return job
}

// endedNow returns a job that is abandoned now, in the clock of its creation.
func endedNow(job objects.JobStatus) objects.JobStatus {
	job.Finished = job.Created.Add(now().Sub(job.Since))
	return job
}

// skewed returns a job with timestamps of a clock that is ahead by that much.
func skewed(ahead time.Duration, job objects.JobStatus) objects.JobStatus {
	job.Created = job.Created.Add(ahead)
	return job
}

// pending returns a job with a pod that has not run for that long.
func pending(since time.Duration) objects.JobStatus {
	job := job(ago(since), objects.JobUnfinished)
	job.Pending = true
	return job
}

// unlimited returns a job of Velero's server that has run for that long.
func unlimited(since time.Duration) objects.JobStatus {
	job := job(ago(since), objects.JobUnfinished)
	job.Ours, job.Limited = false, false
	return job
}

// of returns a job with another record.
func of(verdict objects.Verdict, failures int, factor float64, job objects.JobStatus) objects.JobStatus {
	job.JobRecord = objects.JobRecord{Verdict: verdict, Failures: failures, Factor: factor}
	return job
}

func failed(started time.Time, message string) Run {
	return Run{Started: started, Failed: true, Message: message}
}
