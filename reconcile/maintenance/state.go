// Package maintenance decides when a backup repository is maintained, and reads the results of its jobs. It is
// pure: it calls no API, reads no clock and logs nothing.
package maintenance

import (
	"cmp"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
		Last:      timeOf(from.Status.LastMaintenanceTime),
		Frequency: from.Spec.MaintenanceFrequency.Duration,
	}
	for _, entry := range from.Status.RecentMaintenance {
		repository.History = append(repository.History, Run{
			Started: timeOf(entry.StartTimestamp), Completed: timeOf(entry.CompleteTimestamp),
			Failed: entry.Result == velerov1.BackupRepositoryMaintenanceFailed, Message: entry.Message,
		})
	}
	slices.SortStableFunc(repository.History, func(a, b Run) int { return a.Started.Compare(b.Started) })
	return repository
}

// ApplyTo writes the fields that maintenance changes into a BackupRepository.
func (r Repository) ApplyTo(into *velerov1.BackupRepository) {
	into.Status.LastMaintenanceTime = stamp(r.Last)
	into.Status.RecentMaintenance = nil
	for _, run := range r.History {
		result := velerov1.BackupRepositoryMaintenanceSucceeded
		if run.Failed {
			result = velerov1.BackupRepositoryMaintenanceFailed
		}
		into.Status.RecentMaintenance = append(into.Status.RecentMaintenance, velerov1.BackupRepositoryMaintenanceStatus{
			Result: result, StartTimestamp: stamp(run.Started), CompleteTimestamp: stamp(run.Completed), Message: run.Message,
		})
	}
}

func timeOf(at *metav1.Time) time.Time {
	if at == nil {
		return time.Time{}
	}
	return at.Time
}

func stamp(at time.Time) *metav1.Time {
	if at.IsZero() {
		return nil
	}
	return new(metav1.NewTime(at))
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
