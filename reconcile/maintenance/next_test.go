package maintenance

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/objects"
)

func TestNext(t *testing.T) {
	podless := func(age time.Duration) objects.JobStatus {
		observed := job(ago(age), objects.JobUnfinished)
		observed.HasPod = false
		return observed
	}
	ending := func(since time.Duration) objects.JobStatus {
		observed := job(ago(13*time.Hour), objects.JobUnfinished)
		observed.Terminating, observed.Since = ago(since), ago(since)
		return observed
	}
	ended := ending(2 * time.Minute)
	theirs := unrecorded(job(ago(time.Hour), objects.JobFailed))
	theirs.Ours = false
	ended.Outcome, ended.Finished = objects.JobFailed, ended.Terminating
	released := func(job objects.JobStatus, since time.Duration) objects.JobStatus {
		job.Counted, job.HasPod, job.Released = true, true, ago(since)
		if job.Outcome == objects.JobUnfinished {
			job.Since = ago(since)
		}
		return job
	}
	uncounted := job(ago(3*time.Minute), objects.JobFailed)
	uncounted.Counted = false
	endedBy := job(ago(3*time.Minute), objects.JobFailed)
	endedBy.Finished, endedBy.Since = ago(9*time.Second), ago(9*time.Second)
	early := job(ago(70*time.Minute), objects.JobFailed)
	early.Due = ago(time.Hour)
	suspended := podless(time.Hour)
	suspended.Suspended = true
	for name, test := range map[string]struct {
		change   func(*Repository)
		jobs     []objects.JobStatus
		location Location
		want     Step
	}{
		"it is due since its frequency after the last success": {func(*Repository) {}, nil, existing(), Step{Action: Start, Due: ago(time.Hour), Factor: 1}},
		"it is due in a second, and looked at then":            {func(r *Repository) { r.Last = ago(time.Hour - time.Second) }, nil, existing(), Step{After: time.Second}},
		"it was never maintained":                              {func(r *Repository) { r.Last = time.Time{} }, nil, existing(), Step{Action: Start, Due: ago(100 * time.Hour), Factor: 1}},
		"it has no frequency yet":                              {func(r *Repository) { r.Frequency = 0 }, nil, existing(), Step{Action: Start, Due: ago(time.Hour), Factor: 1}},
		"its location is read-only":                            {func(*Repository) {}, nil, Location{Exists: true, ReadOnly: true}, Step{Reason: ReadOnly}},
		"its location is missing":                              {func(*Repository) {}, nil, Location{}, Step{Reason: NoLocation}},
		"it is not ready":                                      {func(r *Repository) { r.Ready = false }, nil, existing(), Step{Reason: NotReady}},
		"it is of another type, and its jobs are none of ours": {func(r *Repository) { r.Kopia = false }, []objects.JobStatus{podless(time.Hour)}, existing(), Step{Reason: NotKopia}},
		"it is being deleted":                                  {func(r *Repository) { r.Deleting = true }, nil, existing(), Step{Reason: Deleting}},
		"a job runs":                                           {func(*Repository) {}, []objects.JobStatus{job(ago(time.Hour), objects.JobUnfinished)}, existing(), Step{Reason: AlreadyRunning}},
		"a job has no pod yet":                                 {func(*Repository) {}, []objects.JobStatus{podless(time.Minute)}, existing(), Step{Reason: AlreadyRunning, After: time.Minute}},
		"a job will never have a pod":                          {func(*Repository) {}, []objects.JobStatus{podless(2 * time.Minute)}, existing(), Step{Action: Abandon, Jobs: []objects.JobStatus{endedNow(podless(2 * time.Minute))}, Factor: 1}},
		"the clock of the API server is hours behind":          {func(*Repository) {}, []objects.JobStatus{skewed(-3*time.Hour, podless(time.Minute))}, existing(), Step{Reason: AlreadyRunning, After: time.Minute}},
		"the clock of the API server is hours ahead":           {func(*Repository) {}, []objects.JobStatus{skewed(3*time.Hour, podless(2*time.Minute))}, existing(), Step{Action: Abandon, Jobs: []objects.JobStatus{endedNow(skewed(3*time.Hour, podless(2*time.Minute)))}, Factor: 1}},
		"of two unfinished jobs, the one with less time left":  {func(*Repository) {}, []objects.JobStatus{pending(29 * time.Minute), podless(time.Second)}, existing(), Step{Reason: AlreadyRunning, After: time.Minute}},
		"a job has a pod that never runs":                      {func(*Repository) {}, []objects.JobStatus{pending(30 * time.Minute)}, existing(), Step{Action: Abandon, Jobs: []objects.JobStatus{endedNow(pending(30 * time.Minute))}, Factor: 1}},
		"a job of Lateen ends at its own deadline":             {func(*Repository) {}, []objects.JobStatus{job(ago(13*time.Hour), objects.JobUnfinished)}, existing(), Step{Reason: AlreadyRunning}},
		"a job of the server has no deadline":                  {func(*Repository) {}, []objects.JobStatus{unlimited(11 * time.Hour)}, existing(), Step{Reason: AlreadyRunning, After: time.Hour}},
		"a job of the server is abandoned after the limit":     {func(*Repository) {}, []objects.JobStatus{unlimited(12 * time.Hour)}, existing(), Step{Action: Abandon, Jobs: []objects.JobStatus{endedNow(unlimited(12 * time.Hour))}, Factor: 1}},
		"an abandoned job is marked failed":                    {func(*Repository) {}, []objects.JobStatus{recorded(podless(3 * time.Minute))}, existing(), Step{Action: MarkFailed, Jobs: []objects.JobStatus{recorded(podless(3 * time.Minute))}}},
		"a job that is marked failed awaits its condition":     {func(*Repository) {}, []objects.JobStatus{recorded(released(podless(3*time.Minute), 0))}, existing(), Step{Reason: AlreadyRunning}},
		"a job with the number of failures is kept":            {func(*Repository) {}, []objects.JobStatus{released(endedBy, 10*time.Second)}, existing(), Step{After: 5*time.Minute - 9*time.Second}},
		"an older job is deleted":                              {func(r *Repository) { r.Last = now() }, []objects.JobStatus{released(job(ago(3*time.Minute), objects.JobFailed), 3*time.Minute), job(ago(2*time.Minute), objects.JobSucceeded)}, existing(), Step{Action: Delete, Jobs: []objects.JobStatus{released(job(ago(3*time.Minute), objects.JobFailed), 3*time.Minute)}}},
		"an older job is deleted after the delay only":         {func(r *Repository) { r.Last = now() }, []objects.JobStatus{released(endedBy, 10*time.Second), job(ago(2*time.Minute), objects.JobSucceeded)}, existing(), Step{After: time.Second}},
		"a job whose deadline passed before it had a pod":      {func(*Repository) {}, []objects.JobStatus{uncounted}, existing(), Step{Action: MarkFailed, Jobs: []objects.JobStatus{uncounted}}},
		"a job whose pod is terminating":                       {func(*Repository) {}, []objects.JobStatus{ending(time.Minute)}, existing(), Step{Reason: AlreadyRunning, After: time.Minute}},
		"a job whose pod does not end on a lost node":          {func(*Repository) {}, []objects.JobStatus{ending(2 * time.Minute)}, existing(), Step{Action: Record, Jobs: []objects.JobStatus{unrecorded(ended)}, Factor: 1}},
		"a terminating job is marked failed after the wait":    {func(*Repository) {}, []objects.JobStatus{recorded(ending(2 * time.Minute))}, existing(), Step{Action: MarkFailed, Jobs: []objects.JobStatus{recorded(ending(2 * time.Minute))}}},
		"a terminating job is kept for the delay":              {func(*Repository) {}, []objects.JobStatus{recorded(released(ending(4*time.Minute), time.Minute))}, existing(), Step{Reason: AlreadyRunning, After: time.Minute}},
		"a terminating job is deleted though its pod exists":   {func(*Repository) {}, []objects.JobStatus{recorded(released(ending(4*time.Minute), 2*time.Minute))}, existing(), Step{Action: Delete, Jobs: []objects.JobStatus{recorded(released(ending(4*time.Minute), 2*time.Minute))}}},
		"a terminating job that was marked failed is recorded": {func(*Repository) {}, []objects.JobStatus{released(ending(2*time.Minute), 2*time.Minute)}, existing(), Step{Action: Record, Jobs: []objects.JobStatus{released(ended, 2*time.Minute)}, Factor: 1}},
		"a suspended job is not changed":                       {func(*Repository) {}, []objects.JobStatus{suspended}, existing(), Step{Reason: AlreadyRunning}},
		"an unobserved run is recorded":                        {func(*Repository) {}, []objects.JobStatus{unrecorded(job(ago(time.Hour), objects.JobSucceeded))}, Location{}, Step{Action: Record, Jobs: []objects.JobStatus{unrecorded(job(ago(time.Hour), objects.JobSucceeded))}, Factor: 1}},
		"a run that is in the history is still to be counted":  {func(r *Repository) { r.History = []Run{failed(ago(time.Hour), "x")} }, []objects.JobStatus{theirs}, existing(), Step{Action: Record, Jobs: []objects.JobStatus{theirs}, Failures: 1, Factor: 1}},
		"of many, one after the other, the oldest first":       {func(*Repository) {}, []objects.JobStatus{theirs, unrecorded(job(ago(2*time.Hour), objects.JobFailed))}, existing(), Step{Action: Record, Jobs: []objects.JobStatus{unrecorded(job(ago(2*time.Hour), objects.JobFailed))}, Factor: 1}},
		"a job of the server continues the counts":             {func(*Repository) {}, []objects.JobStatus{theirs, of(objects.VerdictOutOfMemory, 6, 1.5, job(ago(2*time.Hour), objects.JobFailed))}, existing(), Step{Action: Record, Jobs: []objects.JobStatus{theirs}, Failures: 7, Factor: 2.25}},
		"a run that failed is tried again five minutes later":  {func(*Repository) {}, []objects.JobStatus{job(ago(4*time.Minute), objects.JobFailed)}, existing(), Step{After: 2 * time.Minute}},
		"the third failure in a row waits 20 minutes": {func(*Repository) {}, []objects.JobStatus{of(objects.VerdictFailed, 2, 1, job(ago(16*time.Minute), objects.JobFailed))}, existing(),
			Step{After: 5 * time.Minute}},
		"failures without a job are in the history": {func(r *Repository) {
			r.History = []Run{failed(ago(30*time.Minute), ""), failed(ago(25*time.Minute), ""), failed(ago(15*time.Minute), "")}
		}, nil, existing(), Step{After: 5 * time.Minute}},
		"of which the server keeps three": {func(r *Repository) {
			r.Failures, r.History = 8, []Run{failed(ago(3*time.Hour), ""), failed(ago(2*time.Hour), ""), failed(ago(time.Hour), "")}
		}, nil, existing(), Step{After: 5 * time.Hour}},
		"failures before a success do not count": {func(r *Repository) {
			r.History = []Run{failed(ago(5*time.Hour), ""), {Started: ago(2 * time.Hour), Completed: ago(2 * time.Hour)}}
		}, nil, existing(), Step{Action: Start, Due: ago(time.Hour), Factor: 1}},
		"an earlier last success starts a new job with another name": {func(*Repository) {}, []objects.JobStatus{job(ago(time.Hour), objects.JobSucceeded)}, existing(),
			Step{Action: Start, Due: ago(59*time.Minute - time.Second), Factor: 1}},
		"a job that ended before it was due, by the clock of the API server": {func(*Repository) {}, []objects.JobStatus{early}, existing(),
			Step{Action: Start, Due: ago(time.Hour - time.Second), Failures: 1, Factor: 1}},
		"a missing class is retried without it at once": {func(*Repository) {}, []objects.JobStatus{of(objects.VerdictClassMissing, 0, 1, job(ago(2*time.Minute), objects.JobFailed))}, existing(),
			Step{Action: Start, Due: ago(time.Minute - time.Second), Failures: 1, Factor: 1}},
		"a class missing again waits like any failure": {func(*Repository) {}, []objects.JobStatus{of(objects.VerdictClassMissing, 1, 1, job(ago(3*time.Minute), objects.JobFailed))}, existing(),
			Step{After: 8 * time.Minute}},
		"a run that took too much memory gets more": {func(*Repository) {}, []objects.JobStatus{of(objects.VerdictOutOfMemory, 0, 1, job(ago(time.Hour), objects.JobFailed))}, existing(),
			Step{Action: Start, Due: ago(54 * time.Minute), Failures: 1, Factor: 1.5}},
	} {
		r := ready()
		test.change(&r)
		require.Equal(t, test.want, Next(r, test.jobs, test.location, policy(), now()), name)
	}
}

func TestNextLeavesTheOrderOfTheJobsToItsCaller(t *testing.T) {
	jobs := []objects.JobStatus{job(ago(time.Hour), objects.JobSucceeded), job(ago(2*time.Hour), objects.JobSucceeded)}
	before := slices.Clone(jobs)
	Next(Repository{Kopia: true, Ready: true}, jobs, existing(), DefaultPolicy(), now())
	require.Equal(t, before, jobs)
}

func TestOnlyTheNewestJobsAreKept(t *testing.T) {
	r := ready()
	var jobs []objects.JobStatus
	for i := range 5 {
		jobs = append(jobs, job(ago(time.Duration(10-i)*time.Hour), objects.JobSucceeded))
	}
	r.Last = now()
	require.Equal(t, Step{Action: Delete, Jobs: jobs[:2]}, Next(r, jobs, existing(), policy(), now()))
	jobs[4].Keep = new(1)
	require.Equal(t, Step{Action: Delete, Jobs: jobs[:4]}, Next(r, jobs, existing(), policy(), now()))
	jobs[4].Keep = new(-7)
	require.Equal(t, Step{Action: Delete, Jobs: jobs}, Next(r, jobs, existing(), policy(), now()))
	last := jobs[4]
	jobs[4].Finished, jobs[4].Since = ago(3*time.Second), ago(3*time.Second)
	require.Equal(t, Step{Action: Delete, Jobs: jobs[:4]}, Next(r, jobs, existing(), policy(), now()))
	require.Equal(t, Step{After: 7 * time.Second}, Next(r, jobs[4:], existing(), policy(), now()), "a server that waits for it must see how it ended")
	jobs[4] = last
	jobs[4].Factor = 1.5
	require.Equal(t, Step{Action: Delete, Jobs: jobs[:4]}, Next(r, jobs, existing(), policy(), now()), "the newest knows how much memory is enough")
}

func TestAJobThatRunsCountsAsKept(t *testing.T) {
	r := ready()
	jobs := []objects.JobStatus{job(ago(3*time.Hour), objects.JobSucceeded), job(ago(2*time.Hour), objects.JobSucceeded), job(ago(time.Hour), objects.JobSucceeded)}
	running := job(now(), objects.JobUnfinished)
	next := func(jobs ...objects.JobStatus) Step { return Next(r, jobs, existing(), policy(), now()) }
	require.Equal(t, Step{Action: Delete, Jobs: jobs[:1]}, next(append(slices.Clone(jobs), running)...), "three are kept by default")
	require.Equal(t, Step{Reason: AlreadyRunning}, next(append(slices.Clone(jobs[1:]), running)...))
	running.Keep = new(1)
	require.Equal(t, Step{Action: Delete, Jobs: jobs}, next(append(slices.Clone(jobs), running)...))
	jobs[2].Finished, jobs[2].Since = ago(3*time.Second), ago(3*time.Second)
	require.Equal(t, Step{Reason: AlreadyRunning, After: 7 * time.Second}, next(jobs[2], running), "a server that waits for it must see how it ended")

	jobs[2] = of(objects.VerdictOutOfMemory, 0, 1, job(ago(time.Hour), objects.JobFailed))
	require.Equal(t, Step{Action: Delete, Jobs: jobs[2:]}, next(jobs[2], running), "the running job determines the memory of the next")
	running.Ours = false
	require.Equal(t, Step{Reason: AlreadyRunning}, next(jobs[2], running), "one of the server's does not")
}

func TestMemoryGrowsFourfoldAtMost(t *testing.T) {
	factor := 1.
	var factors []float64
	for i := range 6 {
		factor = after(of(objects.VerdictOutOfMemory, i, factor, job(now(), objects.JobFailed))).factor
		factors = append(factors, factor)
	}
	require.Equal(t, []float64{1.5, 2.25, 3.375, 4, 4, 4}, factors)
	require.Equal(t, counts{factor: 2.25}, after(of(objects.VerdictSucceeded, 3, 2.25, job(now(), objects.JobSucceeded))), "a sufficient factor is kept")
	theirs := job(now(), objects.JobFailed)
	theirs.Ours = false
	require.Equal(t, counts{4, 1.5}, after(of(objects.VerdictOutOfMemory, 3, 1, theirs)), "it had the configured memory")
	require.Equal(t, counts{4, 2.25}, after(of(objects.VerdictOutOfMemory, 3, 2.25, theirs)), "it has no record of sufficient memory")
}

func TestHistory(t *testing.T) {
	r := Repository{}
	for i := range 30 {
		r = r.With(failed(now().Add(time.Duration(29-i)*time.Hour), ""))
	}
	require.Len(t, r.History, HistoryLength)
	require.True(t, slices.IsSortedFunc(r.History, func(a, b Run) int { return a.Started.Compare(b.Started) }))
	require.Equal(t, now().Add(29*time.Hour), r.History[HistoryLength-1].Started)
	require.Equal(t, r, r.With(failed(r.History[3].Started.Add(time.Millisecond), "again")), "a run is written down once")
	require.Equal(t, r, r.With(failed(now(), "too old")))

	success := job(now().Add(time.Hour*40), objects.JobSucceeded)
	require.Equal(t, failed(success.Created, "locked (after 1m0s)"), RunOf(job(success.Created, objects.JobFailed), "locked"))
	after := r.With(RunOf(success, "unused"))
	require.Equal(t, success.Finished, after.Last)
	require.Equal(t, Run{Started: success.Created, Completed: success.Finished}, after.History[HistoryLength-1])
	require.Equal(t, after.Last, after.With(Run{Started: now().Add(30 * time.Hour), Completed: now()}).Last, "time does not go back")
}

func TestARepositoryRoundTrips(t *testing.T) {
	r := ready().With(failed(ago(time.Hour), "why"), Run{Started: ago(time.Minute), Completed: now()})
	object := &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{UID: r.UID, CreationTimestamp: metav1.NewTime(r.Created)}}
	object.Spec.RepositoryType, object.Spec.MaintenanceFrequency.Duration = "kopia", r.Frequency
	object.Status.Phase = velerov1.BackupRepositoryPhaseReady
	r.ApplyTo(object)
	require.Nil(t, object.Status.RecentMaintenance[0].CompleteTimestamp, "Velero's server takes it for a success")
	slices.Reverse(object.Status.RecentMaintenance)
	require.Equal(t, r, From(object), "in the order of their starts")
}

func TestMaintenanceHasJitterAndIsNeverLate(t *testing.T) {
	observed := map[time.Duration]bool{}
	for i := range 100 {
		r := ready()
		r.UID, r.Frequency = types.UID(fmt.Sprint(i)), 20*time.Second
		early := r.Last.Add(r.Frequency).Sub(due(r, nil, DefaultPolicy()))
		require.GreaterOrEqual(t, early, time.Duration(0))
		require.Less(t, early, r.Frequency/jitterDivisor)
		observed[early.Truncate(time.Millisecond)] = true
	}
	require.Greater(t, len(observed), 50)
}

func TestBackoffIsBounded(t *testing.T) {
	require.Equal(t, 320*time.Minute, backoff(7, DefaultPolicy()))
	require.Equal(t, 6*time.Hour, backoff(HistoryLength, DefaultPolicy()))
}

func TestTheOldestDueIsFirst(t *testing.T) {
	others := []Waiting{{"a", ago(3 * time.Hour)}, {"c", ago(time.Hour)}, {"0", now()}}
	require.True(t, MayStart(Waiting{"b", ago(2 * time.Hour)}, others, 1, 3))
	require.False(t, MayStart(Waiting{"b", ago(2 * time.Hour)}, others, 2, 3))
	require.True(t, MayStart(Waiting{"b", ago(time.Hour)}, others, 1, 3), "a name decides")
	require.False(t, MayStart(Waiting{"d2", now()}, others, 0, 3))
}

// The bounds may be short. A released job with a pod that has not terminated is kept until Velero's server can observe it.
func TestAFailedJobIsDeletedAfterTheDelayOnly(t *testing.T) {
	bounds := policy()
	bounds.PodWait = time.Millisecond
	left := recorded(job(ago(time.Minute), objects.JobUnfinished))
	left.Counted, left.Released, left.Terminating, left.Since = true, ago(9*time.Second), ago(9*time.Second), ago(9*time.Second)
	require.Equal(t, objects.StageAbandoned, left.Stage())
	require.Equal(t, Step{Reason: AlreadyRunning, After: time.Second}, Next(ready(), []objects.JobStatus{left}, existing(), bounds, now()))
	left.Since = ago(bounds.DeleteDelay)
	require.Equal(t, Step{Action: Delete, Jobs: []objects.JobStatus{left}}, Next(ready(), []objects.JobStatus{left}, existing(), bounds, now()))
}

func TestAJobWithoutARepositoryIsReleasedBeforeItsDeletion(t *testing.T) {
	uncounted := job(ago(3*time.Minute), objects.JobFailed)
	uncounted.Counted = false
	jobs := []objects.JobStatus{uncounted}
	require.Equal(t, Step{Action: MarkFailed, Jobs: jobs}, WithoutRepository(jobs, policy(), now()))
	jobs[0].Counted = true
	require.Equal(t, Step{Action: Delete, Jobs: jobs}, WithoutRepository(jobs, policy(), now()))
}

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
	observed.Factor, observed.Since = 1, created
	if outcome != objects.JobUnfinished {
		observed.Counted, observed.Finished, observed.Verdict = true, created.Add(time.Minute), objects.VerdictSucceeded
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

func TestJobsStartInTheWindowOnly(t *testing.T) {
	require.Equal(t, "16:00", now().UTC().Format("15:04"))
	hours := func(start, end float64) Window {
		return Window{Start: time.Duration(start * float64(time.Hour)), End: time.Duration(end * float64(time.Hour))}
	}
	start := Step{Action: Start, Due: ago(time.Hour), Factor: 1}
	for name, test := range map[string]struct {
		window Window
		want   Step
	}{
		"without a window":                  {Window{}, start},
		"it opens now":                      {hours(16, 18), start},
		"it is open":                        {hours(1, 16.5), start},
		"it has just closed":                {hours(1, 16), Step{After: 9 * time.Hour}},
		"it opens later today":              {hours(17, 18), Step{After: time.Hour}},
		"it opens tomorrow":                 {hours(15, 15.5), Step{After: 23 * time.Hour}},
		"it crosses midnight and is open":   {hours(15, 2), start},
		"it crosses midnight and opens":     {hours(22, 2), Step{After: 6 * time.Hour}},
		"it crosses midnight and opens now": {hours(16, 2), start},
		"it crosses midnight, at its end":   {hours(22, 16), Step{After: 6 * time.Hour}},
		"it crosses midnight, before that":  {hours(22, 16.5), start},
	} {
		p := policy()
		p.Window = test.window
		require.Equal(t, test.want, Next(ready(), nil, existing(), p, now()), name)
	}
}

func TestAJobThatBecomesDueAfterTheWindowWaitsForTheNext(t *testing.T) {
	r, p := ready(), policy()
	p.Window = Window{Start: 15 * time.Hour, End: 17 * time.Hour}
	r.Last = ago(30 * time.Minute)
	require.Equal(t, Step{After: 30 * time.Minute}, Next(r, nil, existing(), p, now()), "due at 16:30")
	r.Last = now()
	require.Equal(t, Step{After: 23 * time.Hour}, Next(r, nil, existing(), p, now()), "due at 17:00")

	r.Frequency, r.Last = 24*time.Hour, ago(22*time.Hour+30*time.Minute)
	require.Equal(t, Step{Action: Start, Due: ago(time.Hour), Factor: 1}, Next(r, nil, existing(), p, now()), "due at 17:30, which is after the window of today")
	r.Last = ago(23*time.Hour + 30*time.Minute)
	require.Equal(t, Step{After: 30 * time.Minute}, Next(r, nil, existing(), p, now()), "due at 16:30")
	r.Last = ago(6 * time.Hour)
	require.Equal(t, Step{After: 23 * time.Hour}, Next(r, nil, existing(), p, now()), "it ran five hours before the window of today")
	r.Last = ago(7 * time.Hour)
	require.Equal(t, Step{Action: Start, Due: ago(time.Hour), Factor: 1}, Next(r, nil, existing(), p, now()), "it ran a quarter of a day before the window")
	r.Frequency, r.Last = 25*time.Hour, ago(22*time.Hour+30*time.Minute)
	require.Equal(t, Step{After: 23 * time.Hour}, Next(r, nil, existing(), p, now()), "due every other day")
}

func TestTheWindowDelaysNothingButStarts(t *testing.T) {
	p := policy()
	p.Window = Window{Start: time.Hour, End: 2 * time.Hour}
	require.Equal(t, Record, Next(ready(), []objects.JobStatus{unrecorded(job(ago(time.Minute), objects.JobSucceeded))}, existing(), p, now()).Action)
}

func TestIntervalsAreWholeDaysWithAWindow(t *testing.T) {
	r, p := ready(), policy()
	require.Equal(t, time.Hour, p.IntervalOf(r))
	p.Window = Window{Start: time.Hour, End: 2 * time.Hour}
	require.Equal(t, 24*time.Hour, p.IntervalOf(r))
	r.Frequency = 24*time.Hour + 1
	require.Equal(t, 48*time.Hour, p.IntervalOf(r))
}
