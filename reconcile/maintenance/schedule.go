package maintenance

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// jitterDivisor divides the frequency of a repository; maintenance may be early by at most that fraction.
const jitterDivisor = 20

// due returns when the next maintenance of a repository is due. It depends only on recorded data, so every
// coordinator computes the same time.
func due(r Repository, jobs []objects.JobStatus, policy Policy) time.Time {
	frequency := policy.FrequencyOf(r)
	at := r.Created
	if !r.Last.IsZero() {
		at = r.Last.Add(frequency - jitter(r, frequency, policy))
	}
	if n := len(jobs); n > 0 && !at.After(jobs[n-1].Finished) {
		// A client set the time of the last success back; the job name derived from that time may be in use.
		at = jobs[n-1].Finished.Add(time.Second)
	}
	t := r.countsAfter(jobs)
	if t.failures == 0 {
		return at
	}
	retry := r.lastFailure(jobs).Add(backoff(t.failures, policy))
	if n := len(jobs); n > 0 && t.failures == 1 && jobs[n-1].Verdict == objects.VerdictClassMissing {
		// The next job is created without the class. Only once in a row, because a class may come and go.
		retry = jobs[n-1].Finished
	}
	if retry.After(at) {
		return retry
	}
	return at
}

// jitter returns by how much the maintenance of a repository is early. It is never late: a Velero server that also
// maintains the repository starts a job as soon as it is due.
func jitter(r Repository, frequency time.Duration, policy Policy) time.Duration {
	span := min(policy.MaxJitter, frequency/jitterDivisor)
	if span <= 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(r.UID))
	return time.Duration(binary.BigEndian.Uint64(sum[:8]) % uint64(span))
}

// backoff returns the delay after that many consecutive failures.
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

// lastFailure returns when the last failed run finished, as far as jobs and history still show it.
func (r Repository) lastFailure(jobs []objects.JobStatus) time.Time {
	var last time.Time
	if n := len(jobs); n > 0 && jobs[n-1].Verdict.Failed() {
		last = jobs[n-1].Finished
	}
	if runs := r.failures(); len(runs) > 0 && runs[len(runs)-1].Started.After(last) {
		last = runs[len(runs)-1].Started // it had no job, or its job is deleted
	}
	return last
}
