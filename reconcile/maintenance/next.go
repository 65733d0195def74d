package maintenance

import (
	"slices"
	"time"

	"github.com/lateen-project/lateen/exposer/build"
)

// Next decides what to do about a repository, of which jobs are all that there are, whoever made them. First
// what has ended is written down; then what hinders the next job is removed; then it is made.
func Next(r Repository, jobs []build.JobSeen, location Location, policy Policy, now time.Time) Step {
	if !r.Kopia {
		return Step{Why: NotKopia}
	}
	if r.Deleting {
		return Step{Why: Deleting}
	}
	jobs = slices.Clone(jobs)
	slices.SortStableFunc(jobs, func(a, b build.JobSeen) int { return a.Created.Compare(b.Created) })
	over := ended(jobs)
	for _, job := range over {
		if job.Verdict == "" {
			return r.about(Record, job, jobs)
		}
	}
	if unheard := unheard(over); len(unheard) > 0 {
		return Step{Action: Release, Jobs: unheard}
	}
	unfinished := withOutcome(jobs, build.JobUnfinished)
	surplus, later := removable(surplus(over, unfinished), policy, now)
	if len(surplus) > 0 {
		return Step{Action: Delete, Jobs: surplus}
	}
	if len(unfinished) > 0 {
		step := running(unfinished, policy, now, func(action Action, job build.JobSeen) Step { return r.about(action, job, jobs) })
		if step.Action == Wait {
			step.After = sooner(step.After, later)
		}
		return step
	}
	switch {
	case !r.Ready:
		return Step{Why: NotReady, After: later}
	case !location.Exists:
		return Step{Why: NoLocation, After: later}
	case location.ReadOnly:
		return Step{Why: ReadOnly, After: later}
	}
	at := due(r, over, policy)
	if left := at.Sub(now); left > 0 {
		return Step{After: sooner(left, later)}
	}
	t := r.tallyAfter(over)
	return Step{Action: Start, Due: at, Failures: t.failures, Factor: t.factor}
}

// about is a step that writes down what became of one job.
func (r Repository) about(action Action, job build.JobSeen, jobs []build.JobSeen) Step {
	t := r.tallyBefore(job, jobs)
	return Step{Action: action, Jobs: []build.JobSeen{job}, Failures: t.failures, Factor: t.factor}
}

// WithoutRepository decides what to do about the jobs of a repository that does not exist. Nothing is written down of
// them: they are deleted once Velero's server, which may wait for them, can have seen that they ended.
func WithoutRepository(jobs []build.JobSeen, policy Policy, now time.Time) Step {
	over := ended(jobs)
	if unheard := unheard(over); len(unheard) > 0 {
		return Step{Action: Release, Jobs: unheard}
	}
	old, later := removable(undeleted(over), policy, now)
	if len(old) > 0 {
		return Step{Action: Delete, Jobs: old}
	}
	step := running(withOutcome(jobs, build.JobUnfinished), policy, now, func(_ Action, job build.JobSeen) Step { return part(job) })
	step.After = sooner(step.After, later)
	return step
}

// running is what follows from jobs that have not ended: those that have been in their stage for too long are written down as
// failed, and then made to count as failed.
func running(jobs []build.JobSeen, policy Policy, now time.Time, record func(Action, build.JobSeen) Step) Step {
	wait := Step{Why: AlreadyRunning}
	for _, job := range jobs {
		limit, stage := policy.limit(job), job.Stage()
		left := job.Since.Add(limit).Sub(now)
		switch {
		case limit == 0:
		case left > 0:
			wait.After = sooner(wait.After, left)
		case job.Verdict != "":
			return part(job)
		case stage == build.StageEnding || stage == build.StageLeft:
			job.Outcome, job.Ended = build.JobFailed, job.Ending
			return record(Record, job)
		default:
			job.Ended = job.Created.Add(now.Sub(job.Since)) // by the clock of the API server, as far as anybody can tell
			return record(Abandon, job)
		}
	}
	return wait
}

// limit is how long a job may be in its stage; 0 is for ever.
func (p Policy) limit(job build.JobSeen) time.Duration {
	switch job.Stage() {
	case build.StageNoPod: // Kubernetes tries to create it for ever, and never calls the job failed (velero-protocol W39)
		return p.PodWait
	case build.StagePending:
		return p.PendingWait
	case build.StageRunning:
		if !job.Limited {
			return p.Timeout
		}
	case build.StageEnding: // on a node that does not answer, a pod may take for ever to end
		return p.PodWait
	case build.StageLeft: // it is deleted next
		return max(p.PodWait, p.LetGo)
	case build.StageReleased, build.StageHeld, build.StageUntold, build.StageEnded: // for others to bring on, or not unfinished
	}
	return 0
}

// part is how one gets rid of a job that has not ended: Velero's server must not wait for one that is gone.
func part(job build.JobSeen) Step {
	if job.Told {
		return Step{Action: Delete, Jobs: []build.JobSeen{job}}
	}
	return Step{Action: Release, Jobs: []build.JobSeen{job}}
}

// removable are the ended jobs that Velero's server, which looks every second, has had the time to see, and when to look at
// the others again.
func removable(jobs []build.JobSeen, policy Policy, now time.Time) (old []build.JobSeen, later time.Duration) {
	for _, job := range jobs {
		if left := job.Since.Add(policy.LetGo).Sub(now); left > 0 {
			later = sooner(later, left)
		} else {
			old = append(old, job)
		}
	}
	return old, later
}

// sooner is the shorter of two waits, of which 0 is none.
func sooner(one, other time.Duration) time.Duration {
	if one == 0 || other != 0 && other < one {
		return other
	}
	return one
}

// surplus are the ended jobs that are not kept: all but the newest, and those that never did anything. One that has not
// ended counts as kept. The newest that has ended is kept in any case while no job carries on what the next one depends on:
// how often maintenance failed, and how much memory was not enough.
func surplus(over, unfinished []build.JobSeen) []build.JobSeen {
	if len(over) == 0 {
		return nil
	}
	keep := DefaultKeep
	for _, job := range slices.Concat(over[len(over)-1:], unfinished) {
		if job.Keep != nil {
			keep = *job.Keep
		}
	}
	keep -= len(unfinished)
	carried := slices.ContainsFunc(unfinished, func(job build.JobSeen) bool { return job.Ours })
	if newest := over[len(over)-1]; !carried && after(newest) != (tally{factor: 1}) {
		over, keep = over[:len(over)-1], keep-1
	}
	var old, lasting []build.JobSeen
	for _, job := range over {
		if job.Released.IsZero() {
			lasting = append(lasting, job)
		} else {
			old = append(old, job)
		}
	}
	old = append(old, lasting[:max(0, len(lasting)-max(keep, 0))]...)
	return undeleted(old)
}

// ended are the jobs that Kubernetes calls complete or failed.
func ended(jobs []build.JobSeen) []build.JobSeen {
	return withOutcome(jobs, build.JobSucceeded, build.JobFailed)
}

// unheard are the jobs whose end Velero's server cannot see: one whose time was up before it had a pod has failed by its
// condition only.
func unheard(over []build.JobSeen) []build.JobSeen {
	return slices.DeleteFunc(undeleted(over), func(job build.JobSeen) bool { return job.Told })
}

func undeleted(jobs []build.JobSeen) []build.JobSeen {
	return slices.DeleteFunc(slices.Clone(jobs), func(job build.JobSeen) bool { return job.Deleting })
}

func withOutcome(jobs []build.JobSeen, wanted ...build.JobOutcome) []build.JobSeen {
	return slices.DeleteFunc(slices.Clone(jobs), func(job build.JobSeen) bool { return !slices.Contains(wanted, job.Outcome) })
}

// Waiting is a repository whose job is due.
type Waiting struct {
	Name string
	Due  time.Time
}

// Turn tells whether it is the turn of a repository: there is room for all that have waited longer, and for it.
func Turn(mine Waiting, others []Waiting, running, limit int) bool {
	before := 0
	for _, other := range others {
		if order := other.Due.Compare(mine.Due); order < 0 || order == 0 && other.Name < mine.Name {
			before++
		}
	}
	return running+before < limit
}
