// Package maintenance decides when a backup repository is maintained, and what its jobs have come to. It is
// pure: it calls no API, reads no clock and logs nothing.
package maintenance

import (
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/objects"
)

// HistoryLength is how many runs are kept in the history of a repository, for people: as many as the development branch of
// Velero keeps (defaultMaintenanceStatusQueueLength). The server of every release up to 1.18.3 cuts it to 3 and replaces
// messages, so nothing is decided by what is no longer there.
const HistoryLength = 25

// Repository is what maintenance depends on, copied out of a BackupRepository.
type Repository struct {
	UID       types.UID
	Kopia     bool // no other type is maintained
	Ready     bool
	Deleting  bool
	Created   time.Time
	Last      time.Time     // status.lastMaintenanceTime; zero if there was none
	Frequency time.Duration // spec.maintenanceFrequency
	History   []Run         // oldest first
	Failures  int           // in a row, as this process counted them; no part of the object
}

// Run is an entry of status.recentMaintenance.
type Run struct {
	Started   time.Time
	Completed time.Time // zero for a run that failed: Velero's server takes that of any entry for a success
	Failed    bool
	Message   string
}

// Location is what is known of a repository's BackupStorageLocation. Its phase does not matter: it may be
// Unavailable for reasons that a job does not share.
type Location struct {
	Exists, ReadOnly bool
}

// Policy are the bounds of maintenance.
type Policy struct {
	Frequency   time.Duration // overrides that of every repository; 0: each has its own
	MaxJitter   time.Duration // over which repositories with the same due time are spread, at most; before it, never after
	MinBackoff  time.Duration // after a run that failed; doubles with each further one
	MaxBackoff  time.Duration // the longest of these
	DeleteDelay time.Duration // that Velero's server, which looks every second, has to see that a job has ended before it is deleted

	// How long a job may be in a stage, counted from when this process first saw it there.
	PodWait     time.Duration // without a pod, or failed with a pod that does not end
	PendingWait time.Duration // with a pod that does not run
	Timeout     time.Duration // with a pod that runs; of our jobs it is their deadline, for Kubernetes to enforce
}

// DefaultPolicy is the one table of the bounds' defaults.
func DefaultPolicy() Policy {
	return Policy{
		MaxJitter: 5 * time.Minute, MinBackoff: 5 * time.Minute, MaxBackoff: 6 * time.Hour, DeleteDelay: 10 * time.Second,
		PodWait: 2 * time.Minute, PendingWait: 30 * time.Minute, Timeout: 12 * time.Hour,
	}
}

// defaultFrequency is for a repository that Velero's server has not given one yet: its default for kopia.
const defaultFrequency = time.Hour

// DefaultKeep is how many ended jobs are kept where no configuration says otherwise (Velero's
// keepLatestMaintenanceJobs).
const DefaultKeep = 3

// From copies what matters out of a BackupRepository.
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

// ApplyTo writes into a BackupRepository what maintenance has changed.
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

// Action is the one effect that a step asks for.
type Action int

// The effects that a step can ask for.
const (
	Wait       Action = iota // nothing now; an event or the timer wakes it
	Record                   // write down what became of a job that has ended
	Abandon                  // write down that a job cannot get on, and why
	MarkFailed               // have Jobs, which will not end, count as failed, for whoever waits for them
	Delete                   // remove Jobs, of which everything is written down
	Start                    // make the job that is due, if there is room in the cluster
)

// Step is what is to be done next.
type Step struct {
	Action   Action
	Jobs     []objects.JobStatus // for Record, Abandon, Release and Delete; one for the first two
	Due      time.Time           // for Start: since when; the job is named after it
	Failures int                 // in a row before the job of Start, Record or Abandon
	Factor   float64             // how much more memory than configured that job may take, from 1
	After    time.Duration       // for Wait: when to look again at the latest; 0 is never
	Reason   Reason              // for Wait: what keeps a repository from being maintained; empty for nothing
}

// Reason is a stable word for why a repository is not maintained.
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
