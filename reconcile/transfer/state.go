// Package transfer is the state machine of a transfer, one for all kinds of Velero's data-movement resources. It is
// pure: it calls no API, reads no clock and logs nothing.
package transfer

import (
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Phase is a phase of Velero's data-movement resources; all kinds use the same values.
type Phase string

// The phases, as the CRDs enumerate them. A kind reads an empty phase as New.
const (
	New        Phase = "New"
	Accepted   Phase = "Accepted"
	Prepared   Phase = "Prepared"
	InProgress Phase = "InProgress"
	Canceling  Phase = "Canceling"
	Completed  Phase = "Completed"
	Failed     Phase = "Failed"
	Canceled   Phase = "Canceled"
)

// Phases returns all phases in protocol order.
func Phases() []Phase {
	return []Phase{New, Accepted, Prepared, InProgress, Canceling, Completed, Failed, Canceled}
}

// The methods of Phase are the only comparisons of phases: elsewhere a switch lists them all. So a new phase is decided
// about here and in every switch.

// Terminal reports whether the phase is final.
func (p Phase) Terminal() bool { return p == Completed || p == Failed || p == Canceled }

// IsNew reports whether no agent has accepted the transfer.
func (p Phase) IsNew() bool { return p == New }

// NeedsMover reports whether a mover is being created in this phase.
func (p Phase) NeedsMover() bool { return p == Accepted }

// NeedsSlot reports whether the mover waits for its start in this phase.
func (p Phase) NeedsSlot() bool { return p == Prepared }

// IsPreparing reports whether the phase counts as being prepared.
func (p Phase) IsPreparing() bool { return p == Accepted || p == Prepared }

// IsMoving reports whether the mover works in this phase and nobody has stopped it.
func (p Phase) IsMoving() bool { return p == InProgress }

// HasSucceeded reports whether the phase is final and the data was moved.
func (p Phase) HasSucceeded() bool { return p == Completed }

// HasFailed reports whether the phase is final because of an error.
func (p Phase) HasFailed() bool { return p == Failed }

// HasStarted reports whether a mover was started in this phase.
func (p Phase) HasStarted() bool { return p == InProgress || p == Canceling }

// HasMover reports whether this phase requires a mover; if none exists, it was lost.
func (p Phase) HasMover() bool { return p == Prepared || p == InProgress || p == Canceling }

// NeedsSource reports whether a mover may still be created or replaced in this phase.
func (p Phase) NeedsSource() bool { return p == Accepted || p == Prepared || p == InProgress }

// Report is what a mover reports of its progress.
type Report struct {
	Progress
	At time.Time // by the clock of the mover's node, to the second
}

// Progress is the reported progress of a mover, in bytes.
type Progress struct {
	Total, Done int64
}

// Outcome is the result of a mover that succeeded. Restore movers report TotalBytes only.
type Outcome struct {
	SnapshotID       string // in the kopia repository; empty if the volume was empty
	Path             string // of the volume in the mover
	Note             string // Velero's message for an empty volume
	TotalBytes       int64
	IncrementalBytes int64 // new or changed since the last snapshot
}

// State is what the kinds have in common, copied from the custom resource.
type State struct {
	Phase             Phase
	NodeBound         bool   // the mover runs on the node of a pod, and the agent of that node does everything
	OwnsSnapshot      bool   // cleanup deletes the snapshot that it names, even if it was never accepted
	Foreign           bool   // its data mover is not one of Velero's
	DataMover         string // spec.dataMover or equivalent; empty is Velero's default
	Cancel            bool   // spec.cancel
	Deleting          bool   // deletionTimestamp is set; not the same as Cancel
	Finalizer         bool   // Velero's finalizer of the kind is set
	InPlace           string // the existing PersistentVolume that is restored; empty for a new one
	UnsupportedReason string // why the transfer is never supported; empty if it is
	Acceptor          string // node of the agent that accepted it; node-bound kinds have Node instead
	Exposer           string // node of the first Lateen agent to take part; empty before that and after cleanup
	Node              string // node of the mover
	NodeOS            string // operating system of that node; only kinds that report it
	Message           string
	CreatedAt         time.Time
	AcceptedAt        time.Time
	StartedAt         time.Time
	MoverSucceededAt  time.Time     // when the mover succeeded, so that only the rebind is left; zero before
	RebindTimeout     time.Duration // of the rebind; zero means Limits.RebindTimeout
	CompletedAt       time.Time
	Restarts          int    // lost movers that were replaced
	StorageClass      string // of the claim that an accepted DataDownload restores; empty if it is not known
	Progress          Progress
	Outcome           Outcome
}

// Settled reports whether the transfer is terminal and cleaned up.
func (s State) Settled() bool { return s.Phase.Terminal() && !s.HasLeftovers() }

// HasLeftovers reports whether exposed objects may be left. The finalizer alone is not enough: agents of Velero
// remove it from every terminal transfer, even one of another agent.
func (s State) HasLeftovers() bool { return s.Finalizer || s.Exposer != "" }

// CoordinatorCleansUp reports whether the transfer is terminal and the coordinator acts on it, whatever its node: only the
// coordinator watches snapshots.
func (s State) CoordinatorCleansUp() bool { return !s.NodeBound && s.Phase.Terminal() }

// CoordinatorAccepts reports whether the agent of the transfer's node takes part only once the coordinator has accepted it.
func (s State) CoordinatorAccepts() bool { return s.Phase.IsNew() && s.NodeBound }

// Assigned reports whether the agent of the transfer's node acts on it, while that agent is available. Its label names that
// node then.
func (s State) Assigned() bool { return !s.Phase.IsNew() && s.Node != "" }

// Home returns the node to which the transfer is bound; empty if it is bound to none, or if the node is not known yet.
func (s State) Home() string {
	if s.NodeBound {
		return s.Node
	}
	return ""
}

// PrepareDeadline returns until when the mover of an Accepted transfer must run.
func (s State) PrepareDeadline(lim Limits) time.Time { return s.AcceptedAt.Add(lim.PrepareTimeout) }

// TakesSlot reports whether a mover of this transfer works or may work, and so takes a node slot.
func (s State) TakesSlot() bool {
	return s.Phase.HasStarted() && s.MoverSucceededAt.IsZero() && !s.Foreign
}

// Observed is everything that Next reads besides the custom resource. All of it is values.
type Observed struct {
	Ownership    // what this agent does with the transfer
	Now          time.Time
	CanceledAt   time.Time     // since when a cancel is observed; zero if none is
	ThisNode     string        // the node of this agent
	Home         string        // the node of the transfer, as far as this agent knows
	Eligible     bool          // all preconditions of accepting are met
	WaitingFor   string        // empty if Eligible, else the missing precondition
	Unbounded    bool          // the wait has no deadline: its pod exists and has not started yet
	WaitsSince   time.Time     // since when this agent has observed that wait
	Admitted     bool          // the cluster-wide limit allows one more preparation
	StorageClass string        // of the claim that an admitted DataDownload restores
	HasSlot      bool          // the node has a free slot and this transfer is next
	SlotIn       time.Duration // delay until the next request for a slot; 0 for none
	SourceGone   bool          // the pod of the volume does not exist any more, or has ended and is backed up
	PodResumed   string        // why no mover may write to the pod's volume any more; empty if one may
	Exposure     objects.Exposure
	Loss         Loss      // why the mover of this attempt was lost, if this agent deleted it or knows that it existed
	DeletingAt   time.Time // when the mover pod was first observed deleting, or this agent gave it up; zero if neither
	HasLeftovers bool      // exposed objects exist besides the mover
	Diagnosis    string    // what blocks the mover, in addition to Exposure.Message
	Started      bool      // the mover has reported the start of its data path; observed after a cancel only
	Report       Report    // the last progress that the mover reported; observed when it has failed, or is canceled
	ActiveAt     time.Time // when this agent last observed new bytes or a new Event of the mover
	Result       *Outcome  // of a mover that succeeded; nil if unreadable
	ResultError  string    // why Result is nil
	Rebinds      bool      // the restored volume must be rebound after the mover succeeds
	Rebound      bool      // the restored volume is rebound
	// RebindingSince is when this agent first tried to rebind; zero if it has not.
	RebindingSince time.Time
}

// Loss is why a mover was lost; zero if none was.
type Loss struct {
	Reason  objects.LossReason
	Message string
}

// Ownership is the part of an agent in a transfer.
type Ownership struct {
	Exposes         bool // it accepts and exposes the transfer
	OwnsMover       bool // it follows the mover, as its own agent or instead of an unavailable one
	MayMarkPrepared bool // it writes Prepared once the mover runs
	NodeLost        bool // the mover is lost with its node: no agent is Ready there, and its Node is not Ready or does not exist
}

// Acts reports whether the agent has any part in the transfer.
func (o Ownership) Acts() bool { return o.Exposes || o.OwnsMover || o.MayMarkPrepared }

// Limits are the bounds of the protocol.
type Limits struct {
	PrepareTimeout   time.Duration // from accepting to a running mover (Velero's --data-mover-prepare-timeout)
	PlaceTimeout     time.Duration // from accepting until a mover that does not run yet gives its place to the next transfer
	CancelGrace      time.Duration // from a cancel to the deletion of the mover
	RestartDelay     time.Duration // before the second mover; doubles with each further one
	TerminationGrace time.Duration // from the deletion of a mover pod until an unconfirmed mover counts as lost
	RebindTimeout    time.Duration // from a mover's success to the rebind, if the resource sets no timeout
	RebindGrace      time.Duration // minimum time for each agent, from its first try to rebind
	CleanUpWarning   time.Duration // from the terminal phase to the Event that names what blocks cleanup
	FirstProgress    time.Duration // from the start to the first progress write; faster movers need no such write
	FetchTarget      time.Duration // until the coordinator fetches a restore's pod that its watch does not show, and until the next time
	StallTimeout     time.Duration // without new reports, until the mover is replaced or given up; zero is no limit
	Retries          int           // movers that may be lost before the transfer fails
}

// DefaultLimits returns the defaults of all bounds.
func DefaultLimits() Limits {
	return Limits{
		PrepareTimeout:   30 * time.Minute,
		PlaceTimeout:     10 * time.Second,
		CancelGrace:      5 * time.Minute,
		TerminationGrace: time.Minute,
		RestartDelay:     10 * time.Second,
		RebindTimeout:    10 * time.Minute,
		RebindGrace:      5 * time.Minute,
		CleanUpWarning:   time.Minute,
		FirstProgress:    3 * time.Second,
		FetchTarget:      time.Minute,
		StallTimeout:     2 * time.Hour,
		Retries:          3,
	}
}

// MustNotRunBeside reports whether a restore mover must not start while the mover of another volume of the same pod
// works. A previous mover may have left its done file in the volume. The init container restore-wait terminates
// once every volume has its done file (Velero's velero-restore-helper). With the last done file the pod would
// continue while a mover still writes.
func (s State) MustNotRunBeside(other State) bool {
	return other.Phase.HasStarted() && (s.Restarts > 0 || other.Restarts > 0)
}

// remaining returns the time left before a deadline.
func remaining(deadline time.Time, observed Observed) time.Duration {
	return deadline.Sub(observed.Now)
}
