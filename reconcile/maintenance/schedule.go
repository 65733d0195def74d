package maintenance

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// jitterDivisor is the part of its frequency by which a repository may be maintained early.
const jitterDivisor = 20

// due is when a repository is to be maintained next. It follows from what is written down, so that every
// coordinator computes the same.
func due(r Repository, jobs []objects.JobStatus, policy Policy) time.Time {
	frequency := policy.FrequencyOf(r)
	at := r.Created
	if !r.Last.IsZero() {
		at = r.Last.Add(frequency - jitter(r, frequency, policy))
	}
	if n := len(jobs); n > 0 && !at.After(jobs[n-1].Finished) {
		at = jobs[n-1].Finished.Add(time.Second) // somebody has set the time of the last success back; the name that follows from it may be taken
	}
	t := r.tallyAfter(jobs)
	if t.failures == 0 {
		return at
	}
	retry := r.lastFailure(jobs).Add(backoff(t.failures, policy))
	if n := len(jobs); n > 0 && t.failures == 1 && jobs[n-1].Verdict == objects.VerdictClassMissing {
		retry = jobs[n-1].Finished // the next one is created without the class; once in a row, as a class may come and go
	}
	if retry.After(at) {
		return retry
	}
	return at
}

// FrequencyOf is how often a repository is to be maintained.
func (p Policy) FrequencyOf(r Repository) time.Duration {
	return cmp.Or(max(p.Frequency, 0), max(r.Frequency, 0), defaultFrequency)
}

// jitter is by how much a repository is early: never late, because where Velero's server is at work too,
// it would start a job as soon as it is.
func jitter(r Repository, frequency time.Duration, policy Policy) time.Duration {
	span := min(policy.MaxJitter, frequency/jitterDivisor)
	if span <= 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(r.UID))
	return time.Duration(binary.BigEndian.Uint64(sum[:8]) % uint64(span))
}

// backoff is the pause after so many failures in a row.
func backoff(failures int, policy Policy) time.Duration {
	pause := policy.MinBackoff
	for range failures - 1 {
		if pause >= policy.MaxBackoff/2 {
			return policy.MaxBackoff
		}
		pause *= 2
	}
	return min(pause, policy.MaxBackoff)
}

// lastFailure is when the last run that failed was over, as far as that can still be told.
func (r Repository) lastFailure(jobs []objects.JobStatus) time.Time {
	var last time.Time
	if n := len(jobs); n > 0 && jobs[n-1].Verdict.Failed() {
		last = jobs[n-1].Finished
	}
	if runs := r.failures(); len(runs) > 0 {
		if end := endOf(runs[len(runs)-1], jobs); end.After(last) {
			last = end
		}
	}
	return last
}

// endOf is when a run that failed was over, as far as its job can still tell.
func endOf(run Run, jobs []objects.JobStatus) time.Time {
	for _, job := range jobs {
		if job.Created.Unix() == run.Started.Unix() && !job.Finished.IsZero() {
			return job.Finished
		}
	}
	return run.Started
}

// Memory after a run that took too much of it.
const (
	memoryStep = 1.5
	maxFactor  = 4.
)
