package maintenance

import (
	"slices"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Next returns the next step for a repository, given all of its jobs, Lateen's and Velero's. It first records
// finished jobs, then removes what blocks the next job, then creates that job.
func Next(r Repository, jobs []objects.JobStatus, location Location, policy Policy, now time.Time) Step {
	if !r.Kopia {
		return Step{Reason: NotKopia}
	}
	if r.Deleting {
		return Step{Reason: Deleting}
	}
	jobs = slices.Clone(jobs)
	slices.SortStableFunc(jobs, func(a, b objects.JobStatus) int { return a.Created.Compare(b.Created) })
	finished := finishedJobs(jobs)
	for _, job := range finished {
		if job.Verdict == "" {
			return r.about(Record, job, jobs)
		}
	}
	if uncounted := uncounted(finished); len(uncounted) > 0 {
		return Step{Action: MarkFailed, Jobs: uncounted}
	}
	unfinished := withOutcome(jobs, objects.JobUnfinished)
	surplus, later := removable(surplus(finished, unfinished), policy, now)
	if len(surplus) > 0 {
		return Step{Action: Delete, Jobs: surplus}
	}
	if len(unfinished) > 0 {
		step := running(unfinished, policy, now, func(action Action, job objects.JobStatus) Step { return r.about(action, job, jobs) })
		if step.Action == Wait {
			step.After = minNonZero(step.After, later)
		}
		return step
	}
	switch {
	case !r.Ready:
		return Step{Reason: NotReady, After: later}
	case !location.Exists:
		return Step{Reason: NoLocation, After: later}
	case location.ReadOnly:
		return Step{Reason: ReadOnly, After: later}
	}
	at := due(r, finished, policy)
	from := now
	if at.After(now) {
		from = at
	}
	if left := policy.Window.next(from).Sub(now); left > 0 {
		return Step{After: minNonZero(left, later)}
	}
	t := r.countsAfter(finished)
	return Step{Action: Start, Due: at, Failures: t.failures, Factor: t.factor}
}

// about returns a step that records the result of one job.
func (r Repository) about(action Action, job objects.JobStatus, jobs []objects.JobStatus) Step {
	t := r.countsBefore(job, jobs)
	return Step{Action: action, Jobs: []objects.JobStatus{job}, Failures: t.failures, Factor: t.factor}
}

// WithoutRepository returns the next step for the jobs of a deleted repository. Nothing is recorded for them. They
// are deleted after DeleteDelay, so that a waiting Velero server can observe that they finished.
func WithoutRepository(jobs []objects.JobStatus, policy Policy, now time.Time) Step {
	finished := finishedJobs(jobs)
	if uncounted := uncounted(finished); len(uncounted) > 0 {
		return Step{Action: MarkFailed, Jobs: uncounted}
	}
	old, later := removable(undeleted(finished), policy, now)
	if len(old) > 0 {
		return Step{Action: Delete, Jobs: old}
	}
	step := running(withOutcome(jobs, objects.JobUnfinished), policy, now, func(_ Action, job objects.JobStatus) Step { return part(job) })
	step.After = minNonZero(step.After, later)
	return step
}

// running returns the step for unfinished jobs. A job that exceeds the limit of its stage is recorded as failed.
// After that it is marked as failed for Velero's server.
func running(jobs []objects.JobStatus, policy Policy, now time.Time, record func(Action, objects.JobStatus) Step) Step {
	wait := Step{Reason: AlreadyRunning}
	for _, job := range jobs {
		limit, stage := policy.limit(job), job.Stage()
		left := job.Since.Add(limit).Sub(now)
		switch {
		case limit == 0:
		case left > 0:
			wait.After = minNonZero(wait.After, left)
		case job.Verdict != "":
			return part(job)
		case stage == objects.StageTerminating || stage == objects.StageAbandoned:
			job.Outcome, job.Finished = objects.JobFailed, job.Terminating
			return record(Record, job)
		default:
			// Job timestamps come from the clock of the API server; adding the elapsed time is the best estimate of
			// now on that clock.
			job.Finished = job.Created.Add(now.Sub(job.Since))
			return record(Abandon, job)
		}
	}
	return wait
}

// limit returns how long a job may stay in its stage; 0 is no limit.
func (p Policy) limit(job objects.JobStatus) time.Duration {
	switch job.Stage() {
	case objects.StageNoPod: // Kubernetes retries for ever and never marks the job failed (velero-protocol W39)
		return p.PodWait
	case objects.StagePending:
		return p.PendingWait
	case objects.StageRunning:
		if !job.Limited {
			return p.Timeout
		}
	case objects.StageTerminating: // the pod may never terminate if its node does not respond
		return p.PodWait
	case objects.StageAbandoned: // it is deleted next
		return max(p.PodWait, p.DeleteDelay)
	// Other controllers act in these stages, or the job is finished.
	case objects.StageReleased, objects.StageRetained, objects.StageUncounted, objects.StageFinished:
	}
	return 0
}

// part returns the step that disposes of an unfinished job. Velero's server must not wait for a deleted job, so the
// job is marked failed first.
func part(job objects.JobStatus) Step {
	if job.Counted {
		return Step{Action: Delete, Jobs: []objects.JobStatus{job}}
	}
	return Step{Action: MarkFailed, Jobs: []objects.JobStatus{job}}
}

// removable returns the finished jobs that Velero's server, which polls every second, has had DeleteDelay to
// observe. later is the time until the next of the others; 0 is none.
func removable(jobs []objects.JobStatus, policy Policy, now time.Time) (old []objects.JobStatus, later time.Duration) {
	for _, job := range jobs {
		if left := job.Since.Add(policy.DeleteDelay).Sub(now); left > 0 {
			later = minNonZero(later, left)
		} else {
			old = append(old, job)
		}
	}
	return old, later
}

// minNonZero returns the shorter of two delays; 0 means no delay.
func minNonZero(one, other time.Duration) time.Duration {
	if one == 0 || other != 0 && other < one {
		return other
	}
	return one
}

// surplus returns the finished jobs that are not kept: all but the newest ones, and jobs marked as failed
// (Released). An unfinished job counts as a kept one. The newest finished job is always kept if no unfinished job
// of Lateen carries its counts: the failures and the memory factor that the next job depends on.
func surplus(finished, unfinished []objects.JobStatus) []objects.JobStatus {
	if len(finished) == 0 {
		return nil
	}
	keep := DefaultKeep
	for _, job := range slices.Concat(finished[len(finished)-1:], unfinished) {
		if job.Keep != nil {
			keep = *job.Keep
		}
	}
	keep -= len(unfinished)
	carried := slices.ContainsFunc(unfinished, func(job objects.JobStatus) bool { return job.Ours })
	if newest := finished[len(finished)-1]; !carried && after(newest) != (counts{factor: 1}) {
		finished, keep = finished[:len(finished)-1], keep-1
	}
	var old, lasting []objects.JobStatus
	for _, job := range finished {
		if job.Released.IsZero() {
			lasting = append(lasting, job)
		} else {
			old = append(old, job)
		}
	}
	old = append(old, lasting[:max(0, len(lasting)-max(keep, 0))]...)
	return undeleted(old)
}

// finishedJobs returns the jobs that Kubernetes reports as complete or failed.
func finishedJobs(jobs []objects.JobStatus) []objects.JobStatus {
	return withOutcome(jobs, objects.JobSucceeded, objects.JobFailed)
}

// uncounted returns the finished jobs that Velero's server cannot observe. A job that exceeds its deadline without
// a pod fails by its condition only, and Velero's server reads only the counts.
func uncounted(finished []objects.JobStatus) []objects.JobStatus {
	return slices.DeleteFunc(undeleted(finished), func(job objects.JobStatus) bool { return job.Counted })
}

func undeleted(jobs []objects.JobStatus) []objects.JobStatus {
	return slices.DeleteFunc(slices.Clone(jobs), func(job objects.JobStatus) bool { return job.Deleting })
}

func withOutcome(jobs []objects.JobStatus, wanted ...objects.JobOutcome) []objects.JobStatus {
	return slices.DeleteFunc(slices.Clone(jobs), func(job objects.JobStatus) bool { return !slices.Contains(wanted, job.Outcome) })
}

// Waiting is a repository whose job is due.
type Waiting struct {
	Name string
	Due  time.Time
}

// MayStart reports whether a repository may start its job: the limit has room for all that were due earlier and for
// it.
func MayStart(own Waiting, others []Waiting, running, limit int) bool {
	before := 0
	for _, other := range others {
		if order := other.Due.Compare(own.Due); order < 0 || order == 0 && other.Name < own.Name {
			before++
		}
	}
	return running+before < limit
}
