package maintenance

import (
	"slices"
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Next decides what to do about a repository, of which jobs are all that there are, whoever made them. First
// what has ended is written down; then what hinders the next job is removed; then it is made.
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
	if left := at.Sub(now); left > 0 {
		return Step{After: minNonZero(left, later)}
	}
	t := r.tallyAfter(finished)
	return Step{Action: Start, Due: at, Failures: t.failures, Factor: t.factor}
}

// about is a step that writes down what became of one job.
func (r Repository) about(action Action, job objects.JobStatus, jobs []objects.JobStatus) Step {
	t := r.tallyBefore(job, jobs)
	return Step{Action: action, Jobs: []objects.JobStatus{job}, Failures: t.failures, Factor: t.factor}
}

// WithoutRepository decides what to do about the jobs of a repository that does not exist. Nothing is written down of
// them: they are deleted once Velero's server, which may wait for them, can have seen that they ended.
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

// running is what follows from jobs that have not ended: those that have been in their stage for too long are written down as
// failed, and then made to count as failed.
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
			job.Finished = job.Created.Add(now.Sub(job.Since)) // by the clock of the API server, as far as anybody can tell
			return record(Abandon, job)
		}
	}
	return wait
}

// limit is how long a job may be in its stage; 0 is for ever.
func (p Policy) limit(job objects.JobStatus) time.Duration {
	switch job.Stage() {
	case objects.StageNoPod: // Kubernetes tries to create it for ever, and never calls the job failed (velero-protocol W39)
		return p.PodWait
	case objects.StagePending:
		return p.PendingWait
	case objects.StageRunning:
		if !job.Limited {
			return p.Timeout
		}
	case objects.StageTerminating: // on a node that does not answer, a pod may take for ever to end
		return p.PodWait
	case objects.StageAbandoned: // it is deleted next
		return max(p.PodWait, p.DeleteDelay)
	case objects.StageReleased, objects.StageRetained, objects.StageUncounted, objects.StageFinished: // for others to bring on, or not unfinished
	}
	return 0
}

// part is how one gets rid of a job that has not ended: Velero's server must not wait for one that is gone.
func part(job objects.JobStatus) Step {
	if job.Counted {
		return Step{Action: Delete, Jobs: []objects.JobStatus{job}}
	}
	return Step{Action: MarkFailed, Jobs: []objects.JobStatus{job}}
}

// removable are the ended jobs that Velero's server, which looks every second, has had the time to see, and when to look at
// the others again.
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

// minNonZero is the shorter of two waits, of which 0 is none.
func minNonZero(one, other time.Duration) time.Duration {
	if one == 0 || other != 0 && other < one {
		return other
	}
	return one
}

// surplus are the ended jobs that are not kept: all but the newest, and those that never did anything. One that has not
// ended counts as kept. The newest that has ended is kept in any case while no job carries on what the next one depends on:
// how often maintenance failed, and how much memory was not enough.
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
	if newest := finished[len(finished)-1]; !carried && after(newest) != (tally{factor: 1}) {
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

// finishedJobs are the jobs that Kubernetes calls complete or failed.
func finishedJobs(jobs []objects.JobStatus) []objects.JobStatus {
	return withOutcome(jobs, objects.JobSucceeded, objects.JobFailed)
}

// uncounted are the jobs whose end Velero's server cannot see: one whose time was up before it had a pod has failed by its
// condition only.
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

// MayStart tells whether it is the turn of a repository: there is room for all that have waited longer, and for it.
func MayStart(mine Waiting, others []Waiting, running, limit int) bool {
	before := 0
	for _, other := range others {
		if order := other.Due.Compare(mine.Due); order < 0 || order == 0 && other.Name < mine.Name {
			before++
		}
	}
	return running+before < limit
}
