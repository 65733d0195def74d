package maintenance

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/lateen-project/lateen/exposer/build"
)

// spreadShare is the part of its frequency by which a repository may be maintained early.
const spreadShare = 20

// due is when a repository is to be maintained next. It follows from what is written down, so that every
// coordinator computes the same.
func due(r Repository, jobs []build.JobSeen, policy Policy) time.Time {
	frequency := cmp.Or(max(policy.Frequency, 0), max(r.Frequency, 0), defaultFrequency)
	at := r.Created
	if !r.Last.IsZero() {
		at = r.Last.Add(frequency - jitter(r, frequency, policy))
	}
	if n := len(jobs); n > 0 && !at.After(jobs[n-1].Ended) {
		at = jobs[n-1].Ended.Add(time.Second) // somebody has set the time of the last success back; the name that follows from it may be taken
	}
	failures := r.failures()
	if len(failures) == 0 {
		return at
	}
	last := failures[len(failures)-1]
	retry := endOf(last, jobs).Add(backoff(len(failures), policy))
	if classGone(failures) {
		retry = last.Started.Add(policy.PodWait)
	}
	if retry.After(at) {
		return retry
	}
	return at
}

// jitter is by how much a repository is early: never late, because where Velero's server is at work too,
// it would start a job as soon as it is.
func jitter(r Repository, frequency time.Duration, policy Policy) time.Duration {
	span := min(policy.Spread, frequency/spreadShare)
	if span <= 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(r.UID))
	return time.Duration(binary.BigEndian.Uint64(sum[:8]) % uint64(span))
}

// backoff is the pause after so many failures in a row.
func backoff(failures int, policy Policy) time.Duration {
	pause := policy.FirstRetry
	for range failures - 1 {
		if pause >= policy.LastRetry/2 {
			return policy.LastRetry
		}
		pause *= 2
	}
	return min(pause, policy.LastRetry)
}

// endOf is when a run that failed was over, as far as its job can still tell.
func endOf(run Run, jobs []build.JobSeen) time.Time {
	for _, job := range jobs {
		if job.Created.Unix() == run.Started.Unix() && !job.Ended.IsZero() {
			return job.Ended
		}
	}
	return run.Started
}

// Memory after a run that took too much of it.
const (
	memoryStep = 1.5
	memoryMost = 4.
)

// factor is how much more memory than configured the next job may take: what the last one had, and more if that
// was not enough.
func factor(r Repository, jobs []build.JobSeen) float64 {
	if len(jobs) == 0 {
		return 1
	}
	last := jobs[len(jobs)-1]
	killed := slices.ContainsFunc(r.History, func(run Run) bool {
		return run.Failed && run.Started.Unix() == last.Created.Unix() && strings.Contains(run.Message, OutOfMemory)
	})
	if !killed {
		return last.Factor
	}
	return min(last.Factor*memoryStep, memoryMost)
}
