package figures

import (
	"slices"
	"time"
)

// Run is one maintenance job, as watches saw it.
type Run struct {
	Repository string

	Made   time.Time // the job
	Pod    time.Time // its pod is created
	Begun  time.Time // its pod runs
	Ended  time.Time // its pod has ended
	Over   time.Time // the job is, in the words of Kubernetes
	Noted  time.Time // it is in the history of its repository
	Failed bool
}

// Runs is how the maintenance of a number of repositories went, of which so many at once were allowed.
type Runs struct {
	Succeeded  int
	Makespan   time.Duration // from the moment when all were due to the last entry in a history
	MostAtOnce int           // pods that had not ended
	Pod        time.Duration // median from a job to its running pod
	Work       time.Duration // median that a pod ran
	Close      time.Duration // median from the end of a pod to that of its job
	Turnover   time.Duration // median from the end of a pod to the job that takes its place
}

// MeasureRuns reads the jobs of repositories that were all due at a time, of which at most limit may run at once.
func MeasureRuns(due time.Time, runs []Run, limit int) Runs {
	var all Runs
	var made, created, ended []time.Time
	var pods, work, closes, turnovers []time.Duration
	for _, run := range runs {
		if !run.Failed {
			all.Succeeded++
		}
		all.Makespan = max(all.Makespan, run.Noted.Sub(due))
		made, created, ended = append(made, run.Made), append(created, run.Pod), append(ended, run.Ended)
		pods, work, closes = append(pods, run.Begun.Sub(run.Made)), append(work, run.Ended.Sub(run.Begun)), append(closes, run.Over.Sub(run.Ended))
	}
	for _, times := range [][]time.Time{made, created, ended} {
		slices.SortFunc(times, time.Time.Compare)
	}
	for i := range created {
		before, _ := slices.BinarySearchFunc(ended, created[i], func(a, b time.Time) int { return a.Compare(b.Add(1)) })
		all.MostAtOnce = max(all.MostAtOnce, i+1-before)
		if i >= limit {
			turnovers = append(turnovers, made[i].Sub(ended[i-limit]))
		}
	}
	all.Pod, all.Work, all.Close, all.Turnover = median(pods), median(work), median(closes), median(turnovers)
	return all
}

func median(spans []time.Duration) time.Duration {
	slices.Sort(spans)
	return Percentile(spans, .5)
}
