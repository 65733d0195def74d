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
	over := withOutcome(jobs, build.JobSucceeded, build.JobFailed)
	if unknown := slices.DeleteFunc(slices.Clone(over), r.remembers); len(unknown) > 0 {
		return Step{Action: Record, Jobs: unknown}
	}
	if unfinished := withOutcome(jobs, build.JobUnfinished); len(unfinished) > 0 {
		return running(r, unfinished, policy, now)
	}
	if surplus := surplus(r, over); len(surplus) > 0 {
		return Step{Action: Delete, Jobs: surplus}
	}
	switch {
	case !r.Ready:
		return Step{Why: NotReady}
	case !location.Exists:
		return Step{Why: NoLocation}
	case location.ReadOnly:
		return Step{Why: ReadOnly}
	}
	at := due(r, over, policy)
	if left := at.Sub(now); left > 0 {
		return Step{After: left}
	}
	return Step{Action: Start, Due: at, Factor: factor(r, over)}
}

// running is what follows from jobs that have not ended. One that has had no pod for so long will never have
// one: Kubernetes tries to create it for ever, and never calls the job failed (velero-protocol W39). One whose time
// is up, and whose pod still does not end, has it on a node that does not answer: that may take for ever too.
func running(r Repository, jobs []build.JobSeen, policy Policy, now time.Time) Step {
	wait := Step{Why: AlreadyRunning}
	for _, job := range jobs {
		since, action := job.Created, Abandon
		switch {
		case job.Deleting:
			continue
		case !job.Ending.IsZero():
			since, action = job.Ending, Record
			job.Outcome, job.Ended = build.JobFailed, job.Ending
		case job.HasPod || job.Suspended:
			continue
		}
		left := since.Add(policy.PodWait).Sub(now)
		switch {
		case left > 0 && (wait.After == 0 || left < wait.After):
			wait.After = left
		case left > 0:
		case r.remembers(job):
			return Step{Action: Delete, Jobs: []build.JobSeen{job}}
		default:
			return Step{Action: action, Jobs: []build.JobSeen{job}}
		}
	}
	return wait
}

// surplus are the ended jobs that are not kept: all but the newest. One that says how much memory the next may take
// is kept in any case.
func surplus(r Repository, over []build.JobSeen) []build.JobSeen {
	if len(over) == 0 {
		return nil
	}
	keep := DefaultKeep
	if wanted := over[len(over)-1].Keep; wanted != nil {
		keep = max(*wanted, 0)
	}
	if factor(r, over) > 1 {
		keep = max(keep, 1)
	}
	old := over[:max(0, len(over)-keep)]
	return slices.DeleteFunc(slices.Clone(old), func(job build.JobSeen) bool { return job.Deleting })
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
