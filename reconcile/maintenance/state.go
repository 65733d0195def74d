// Package maintenance decides when a backup repository is maintained, and reads the results of its jobs. It is
// pure: it calls no API, reads no clock and logs nothing.
package maintenance

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/objects"
)

// HistoryLength is the number of runs kept in the history of a repository, for people. It is the value of Velero's
// development branch (defaultMaintenanceStatusQueueLength). The server of every release up to 1.18.3 cuts the
// history to 3 and replaces messages, so no decision depends on a missing entry.
const HistoryLength = 25

// Repository is the input of maintenance, copied from a BackupRepository.
type Repository struct {
	UID       types.UID
	Kopia     bool // other types are not maintained
	Ready     bool
	Deleting  bool
	Created   time.Time
	Last      time.Time     // status.lastMaintenanceTime; zero if there was none
	Frequency time.Duration // spec.maintenanceFrequency
	History   []Run         // oldest first
	Failures  int           // consecutive, as counted by this process; not stored in the object
	Factor    float64       // of the memory limit, as known to this process; 0: unknown
}

// Run is an entry of status.recentMaintenance.
type Run struct {
	Started   time.Time
	Completed time.Time // zero for a failed run: Velero's server takes the completion time of any entry for a success
	Failed    bool
	Message   string
}

// Location is the BackupStorageLocation of a repository. Its phase is ignored: it may be Unavailable for reasons
// that do not affect a job.
type Location struct {
	Exists, ReadOnly bool
}

// Policy are the bounds of maintenance.
type Policy struct {
	Frequency   time.Duration // overrides that of every repository; 0: each uses its own
	MaxJitter   time.Duration // maximum spread of repositories with the same due time; always early, never late
	MinBackoff  time.Duration // after the first failed run; doubles with each further one
	MaxBackoff  time.Duration // upper limit of the backoff
	Window      Window        // in which jobs may start
	DeleteDelay time.Duration // before a finished job is deleted; Velero's server polls every second

	// Limits of the time in a stage, counted from when this process first observed the job in it.
	PodWait     time.Duration // without a pod, or failed with a pod that does not terminate
	PendingWait time.Duration // with a pod that does not run
	Timeout     time.Duration // with a running pod; on Lateen's jobs it is the deadline that Kubernetes enforces
}

// DefaultPolicy returns the defaults of all bounds.
func DefaultPolicy() Policy {
	return Policy{
		MaxJitter: 5 * time.Minute, MinBackoff: 5 * time.Minute, MaxBackoff: 6 * time.Hour, DeleteDelay: 10 * time.Second,
		PodWait: 2 * time.Minute, PendingWait: 30 * time.Minute, Timeout: 12 * time.Hour,
	}
}

// defaultFrequency is Velero's default for kopia. It applies until Velero's server sets a frequency.
const defaultFrequency = time.Hour

// DefaultKeep is the default number of kept finished jobs (Velero's keepLatestMaintenanceJobs).
const DefaultKeep = 3

// From returns the maintenance input of a BackupRepository.
func From(from *velerov1.BackupRepository) Repository {
	repository := Repository{
		UID:       from.UID,
		Kopia:     from.Spec.RepositoryType == velerov1.BackupRepositoryTypeKopia,
		Ready:     from.Status.Phase == velerov1.BackupRepositoryPhaseReady,
		Deleting:  from.DeletionTimestamp != nil,
		Created:   from.CreationTimestamp.Time,
		Last:      objects.TimeOf(from.Status.LastMaintenanceTime),
		Frequency: from.Spec.MaintenanceFrequency.Duration,
	}
	for _, entry := range from.Status.RecentMaintenance {
		repository.History = append(repository.History, Run{
			Started: objects.TimeOf(entry.StartTimestamp), Completed: objects.TimeOf(entry.CompleteTimestamp),
			Failed: entry.Result == velerov1.BackupRepositoryMaintenanceFailed, Message: entry.Message,
		})
	}
	slices.SortStableFunc(repository.History, func(a, b Run) int { return a.Started.Compare(b.Started) })
	return repository
}

// ApplyTo writes the fields that maintenance changes into a BackupRepository.
func (r Repository) ApplyTo(into *velerov1.BackupRepository) {
	into.Status.LastMaintenanceTime = objects.Timestamp(r.Last)
	into.Status.RecentMaintenance = nil
	for _, run := range r.History {
		result := velerov1.BackupRepositoryMaintenanceSucceeded
		if run.Failed {
			result = velerov1.BackupRepositoryMaintenanceFailed
		}
		into.Status.RecentMaintenance = append(into.Status.RecentMaintenance, velerov1.BackupRepositoryMaintenanceStatus{
			Result: result, StartTimestamp: objects.Timestamp(run.Started), CompleteTimestamp: objects.Timestamp(run.Completed), Message: run.Message,
		})
	}
}

// Action is the one effect of a step.
type Action int

// The effects of steps.
const (
	Wait       Action = iota // do nothing; an event or the timer triggers the next reconcile
	Record                   // record the result of a finished job
	Abandon                  // record that a job cannot make progress, and why
	MarkFailed               // set status.failed=1 on Jobs that never finish, so that Velero's server stops waiting
	Delete                   // delete Jobs that are completely recorded
	Start                    // create the due job, if the limit of the cluster allows it
)

// Step is the next step of a repository.
type Step struct {
	Action   Action
	Jobs     []objects.JobStatus // for Record, Abandon, MarkFailed and Delete; one for the first two
	Due      time.Time           // for Start: since when the job is due; part of its name
	Failures int                 // consecutive failures before the job of Start, Record or Abandon
	Factor   float64             // of the configured memory limit for that job, from 1
	After    time.Duration       // for Wait: requeue after this delay; 0 is never
	Reason   Reason              // for Wait: why the repository is not maintained; empty for no reason
}

// Reason is a stable identifier of why a repository is not maintained.
type Reason string

// The reasons.
const (
	NotKopia       Reason = "not_kopia"
	NotReady       Reason = "not_ready"
	NoLocation     Reason = "location_missing"
	ReadOnly       Reason = "location_read_only"
	Deleting       Reason = "deleting"
	AlreadyRunning Reason = "running"
)

// IntervalOf returns the regular time between two runs of a repository. With a window, it is a number of whole days.
func (p Policy) IntervalOf(r Repository) time.Duration {
	frequency := p.FrequencyOf(r)
	if p.Window == (Window{}) {
		return frequency
	}
	return (frequency + day - 1) / day * day
}

// FrequencyOf returns the maintenance interval of a repository.
func (p Policy) FrequencyOf(r Repository) time.Duration {
	return cmp.Or(max(p.Frequency, 0), max(r.Frequency, 0), defaultFrequency)
}

// Factors of the memory limit after a run that was OOMKilled.
const (
	memoryStep = 1.5
	maxFactor  = 4.
)

// RunOf returns the history entry of a finished or abandoned job; job.Finished is its end. why is the reason of a
// failure. The message of a failed run also contains its duration, because the entry has no field for it.
func RunOf(job objects.JobStatus, why string) Run {
	if job.Outcome == objects.JobSucceeded {
		return Run{Started: job.Created, Completed: job.Finished}
	}
	return Run{Started: job.Created, Failed: true, Message: why + " (after " + job.Finished.Sub(job.Created).Round(time.Second).String() + ")"}
}

// With returns the repository with more runs in its history. Two runs that started in the same second are the same
// run. It keeps only the newest HistoryLength runs.
func (r Repository) With(runs ...Run) Repository {
	r.History = slices.Clone(r.History)
	for _, run := range runs {
		if !r.has(run.Started) {
			r.History = append(r.History, run)
		}
		if !run.Failed && run.Completed.After(r.Last) {
			r.Last = run.Completed
		}
	}
	slices.SortStableFunc(r.History, func(a, b Run) int { return a.Started.Compare(b.Started) })
	r.History = r.History[max(0, len(r.History)-HistoryLength):]
	return r
}

func (r Repository) has(started time.Time) bool {
	return slices.ContainsFunc(r.History, func(run Run) bool { return run.Started.Unix() == started.Unix() })
}

// failures returns the failed runs since the last success, oldest first.
func (r Repository) failures() []Run {
	last := len(r.History)
	for last > 0 && r.History[last-1].Failed {
		last--
	}
	return r.History[last:]
}

// counts is what the previous runs of a repository imply for its next job.
type counts struct {
	failures int     // consecutive
	factor   float64 // of the memory limit
}

// CountsAfter returns the number of consecutive failures after a recorded job, and the factor of the memory limit.
func CountsAfter(job objects.JobStatus) (failures int, factor float64) {
	t := after(job)
	return t.failures, t.factor
}

// after returns the counts after a recorded job.
func after(job objects.JobStatus) counts {
	t := counts{failures: job.Failures, factor: job.Factor}
	if !job.Verdict.Failed() {
		t.failures = 0
		return t
	}
	t.failures++
	switch {
	case job.Verdict != objects.VerdictOutOfMemory:
	case job.Ours:
		t.factor = min(t.factor*memoryStep, maxFactor)
	default: // it had the configured limit
		t.factor = max(t.factor, memoryStep)
	}
	return t
}

// countsBefore returns the counts before a job, from all existing jobs, oldest first. Lateen's jobs carry it in
// annotations, because older jobs may have been deleted.
func (r Repository) countsBefore(job objects.JobStatus, jobs []objects.JobStatus) counts {
	if job.Ours {
		return counts{failures: job.Failures, factor: job.Factor}
	}
	older := slices.DeleteFunc(slices.Clone(jobs), func(one objects.JobStatus) bool { return !one.Created.Before(job.Created) })
	return r.countsAfter(older)
}

// FailuresAfter returns the number of consecutive failures after all existing jobs, oldest first.
func (r Repository) FailuresAfter(jobs []objects.JobStatus) int { return r.countsAfter(jobs).failures }

// countsAfter returns the counts after all jobs, oldest first. The history and the counts of this process cover
// failures without a job and deleted jobs: Velero's server deletes them at once if none is to be kept. The history
// alone is not enough: the server keeps 3 entries and replaces messages.
func (r Repository) countsAfter(jobs []objects.JobStatus) counts {
	t := counts{factor: 1}
	for _, job := range slices.Backward(jobs) {
		if job.Verdict != "" {
			t = after(job)
			break
		}
	}
	t.failures, t.factor = max(t.failures, len(r.failures()), r.Failures), max(t.factor, r.Factor)
	return t
}

// jitterDivisor divides the frequency of a repository; maintenance may be early by at most that fraction.
const jitterDivisor = 20

// due returns when the next maintenance of a repository is due. It depends only on recorded data, so every
// coordinator computes the same time.
func due(r Repository, jobs []objects.JobStatus, policy Policy) time.Time {
	frequency := policy.FrequencyOf(r)
	at := r.Created
	if !r.Last.IsZero() {
		at = r.Last.Add(frequency - jitter(r, frequency, policy))
		// Each run ends later than the one before. Once it would be due after the window of its day, it starts with that.
		opens := policy.Window.opened(r.Last).Add(policy.IntervalOf(r))
		if opens.Before(at) && policy.Window.next(at).After(at) && opens.Sub(r.Last) >= frequency/4 { // else it ran shortly before the window
			at = opens
		}
	}
	if n := len(jobs); n > 0 {
		// The name of a job has the second in which it is due, and must be new. A client may have set the time of the last success
		// back, and the last job may have ended before it was due, by the clock of the API server.
		for _, used := range []time.Time{jobs[n-1].Due, jobs[n-1].Finished} {
			if at.Unix() <= used.Unix() {
				at = used.Add(time.Second)
			}
		}
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

// lastFailure returns when the newest run finished, which failed: failures are counted. A run without a job has only its start.
func (r Repository) lastFailure(jobs []objects.JobStatus) time.Time {
	var last time.Time
	if n := len(jobs); n > 0 {
		last = jobs[n-1].Finished
	}
	if runs := r.failures(); len(runs) > 0 && runs[len(runs)-1].Started.After(last) {
		last = runs[len(runs)-1].Started
	}
	return last
}

// day is the period of a Window.
const day = 24 * time.Hour

// Window is the daily time in which jobs may start, from Start until before End, both since midnight UTC. It may cross
// midnight. The zero value is the whole day.
type Window struct {
	Start, End time.Duration
}

// opened returns when the window opened last, not after t.
func (w Window) opened(t time.Time) time.Time {
	if at := t.Truncate(day).Add(w.Start); !at.After(t) {
		return at
	}
	return t.Truncate(day).Add(w.Start - day)
}

// next returns the first time in the window that is not before t.
func (w Window) next(t time.Time) time.Time {
	if w == (Window{}) {
		return t
	}
	midnight := t.Truncate(day)
	since := t.Sub(midnight)
	inside := since >= w.Start && since < w.End
	if w.End < w.Start {
		inside = since >= w.Start || since < w.End
	}
	switch {
	case inside:
		return t
	case since < w.Start:
		return midnight.Add(w.Start)
	}
	return midnight.Add(day + w.Start)
}
