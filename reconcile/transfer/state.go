// Package transfer decides what happens next to a data movement: one state machine for all kinds of
// Velero's data-movement resources. It is pure: it calls no API, reads no clock and logs nothing.
package transfer

import (
	"time"

	"github.com/lateen-project/lateen/exposer/objects"
)

// Phase is a phase of Velero's data-movement resources; the words are the same for all kinds.
type Phase string

// The phases, as the CRDs enumerate them. The server creates resources without one.
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

// Phases are all phases in the order in which they follow each other.
func Phases() []Phase {
	return []Phase{New, Accepted, Prepared, InProgress, Canceling, Completed, Failed, Canceled}
}

// Terminal tells whether a phase never changes again.
func (p Phase) Terminal() bool { return p == Completed || p == Failed || p == Canceled }

// HasStarted tells whether a mover was told to work, in this phase.
func (p Phase) HasStarted() bool { return p == InProgress || p == Canceling }

// HasMover tells whether there must be a mover in this phase, or one was lost.
func (p Phase) HasMover() bool { return p == Prepared || p == InProgress || p == Canceling }

// NeedsSource tells whether a mover is still to be made, or made again, in this phase.
func (p Phase) NeedsSource() bool { return p == Accepted || p == Prepared || p == InProgress }

// Progress is how far a mover says that it is, in bytes.
type Progress struct {
	Total, Done int64
}

// Outcome is what a mover leaves behind when it succeeds. Movers of restores leave TotalBytes only.
type Outcome struct {
	SnapshotID       string // of the kopia repository; empty when the volume was empty
	Path             string // as the mover saw the volume
	Note             string // what Velero says of a volume that was empty
	TotalBytes       int64
	IncrementalBytes int64 // new or changed since the last snapshot
}

// State is what the kinds have in common, copied out of the custom resource.
type State struct {
	Phase             Phase
	NodeBound         bool   // its mover belongs where a pod is: everything is done by the agent of that node
	OwnsSnapshot      bool   // the snapshot that it names goes with it, even if it was never accepted
	Foreign           bool   // it is for another data mover than Velero's own
	DataMover         string // that it is for, as it says; empty is Velero's default
	Cancel            bool   // spec.cancel
	Deleting          bool   // deletionTimestamp is set; not the same as Cancel
	Finalizer         bool   // ours is there
	UnsupportedReason string // why it can never be served; empty if it can
	Acceptor          string // whose agent accepted it; kinds whose movers belong to a pod have Node instead
	Restarting        bool   // its mover was given up and the restart is counted; the pod of that mover goes before the phase goes back
	Exposer           string // whose agent of Lateen first took part in it; empty: none has, or it is over and cleaned up
	Node              string // where the mover is followed
	NodeOS            string // of that node: only kinds that report it
	Message           string
	CreatedAt         time.Time
	AcceptedAt        time.Time
	StartedAt         time.Time
	MoverSucceededAt  time.Time     // the mover succeeded, and only the delivery is left
	RebindTimeout     time.Duration // what the delivery may take; zero is Limits.DeliverTimeout
	CompletedAt       time.Time
	Restarts          int // movers that were lost and replaced
	Progress          Progress
	Outcome           Outcome
}

// Settled tells whether it has ended and nobody has anything left to do.
func (s State) Settled() bool { return s.Phase.Terminal() && !s.HasLeftovers() }

// HasLeftovers tells whether something may be left of what was exposed. The finalizer alone does not say so: agents of Velero
// take it away from whatever has ended, whoever is to clean up.
func (s State) HasLeftovers() bool { return s.Finalizer || s.Exposer != "" }

// TakesSlot tells whether a mover of ours works, or may work.
func (s State) TakesSlot() bool {
	return s.Phase.HasStarted() && s.MoverSucceededAt.IsZero() && !s.Foreign
}

// Observed is what there is to know besides the custom resource. Everything in it is a value.
type Observed struct {
	Now             time.Time
	CanceledAt      time.Time     // when a cancel was first seen; zero if none was
	ThisNode        string        // the node of this agent
	Exposes         bool          // this agent accepts and exposes it
	OwnsMover       bool          // this agent follows its mover
	MayMarkPrepared bool          // this agent follows what runs where the mover runs
	Eligible        bool          // what it waits for before it may be accepted is there
	WaitingFor      string        // then: nothing; else what it waits for
	Unbounded       bool          // then: it may last, as long as what it waits for exists
	WaitsSince      time.Time     // since when that has been so, as far as this agent has seen
	Admitted        bool          // one more may be prepared in the cluster
	HasSlot         bool          // one more mover may run on its node, and this one is next
	SlotIn          time.Duration // when to ask for a slot again, if it must not have one yet
	SourceGone      bool          // the pod whose volume it is does not exist any more
	PodResumed      string        // why no mover may write to the volume of that pod any more; empty if one may
	Exposure        objects.Exposure
	NodeLost        bool      // no agent is Ready where its mover is, and that Node is not Ready or does not exist
	DeletingAt      time.Time // when its mover's pod was first seen to be deleting; zero if it is not
	HasLeftovers    bool      // something of the exposure exists besides the mover
	Diagnosis       string    // what keeps the mover from running, besides what the exposure says
	Started         bool      // its mover has said that the data path started
	Progress        Progress  // what its mover said last
	ProgressAt      time.Time // and when
	ActiveAt        time.Time // when this agent last saw its mover report something new, be it bytes or an Event
	Result          *Outcome  // of a mover that succeeded; nil if what it left cannot be read
	ResultError     string    // then: why
	Rebinds         bool      // what the mover restored is still to be delivered once it has succeeded
	Rebound         bool      // it has been
	// RebindingSince is when this agent first tried to deliver it; zero if it has not.
	RebindingSince time.Time
}

// Limits are the bounds of the protocol.
type Limits struct {
	PrepareTimeout   time.Duration // from accepting to a running mover (Velero's --data-mover-prepare-timeout)
	CancelGrace      time.Duration // from a cancel to the deletion of the mover
	RestartDelay     time.Duration // before the second mover; doubles with each further one
	TerminationGrace time.Duration // from the deletion of a mover's pod until the mover counts as lost though its node has not confirmed its end
	RebindTimeout    time.Duration // from a mover's success to the delivery of what it restored, where the resource does not say
	RebindGrace      time.Duration // that each agent has at least, from its first try to deliver
	CleanUpWarning   time.Duration // from the end of a transfer to the Event that says what its clean-up still waits for
	FirstProgress    time.Duration // from the start to the first write of progress: what ends sooner has it in its last write
	StallTimeout     time.Duration // that a mover may report nothing new before it is replaced, or given up; zero is for ever
	Retries          int           // movers that may be lost before the transfer fails
}

// DefaultLimits is the one table of the bounds' defaults.
func DefaultLimits() Limits {
	return Limits{
		PrepareTimeout:   30 * time.Minute,
		CancelGrace:      5 * time.Minute,
		TerminationGrace: time.Minute,
		RestartDelay:     10 * time.Second,
		RebindTimeout:    10 * time.Minute,
		RebindGrace:      time.Minute,
		CleanUpWarning:   time.Minute,
		FirstProgress:    3 * time.Second,
		StallTimeout:     2 * time.Hour,
		Retries:          3,
	}
}

// Action is the one effect that a step asks for.
type Action int

// The effects that a step can ask for.
const (
	Wait          Action = iota // nothing now; an event or the timer wakes it
	Write                       // write State to the custom resource
	Expose                      // make the mover, or what it still lacks
	Rebind                      // put what was restored where it belongs
	AbandonRebind               // try the delivery a last time; unless it is done then, keep what was restored, and fail
	Remove                      // remove what was exposed
)

// Step is what is to be done next.
type Step struct {
	Action Action
	State  State         // for Write
	After  time.Duration // when to look again at the latest, whatever the action; 0 is never
	Reason Reason        // for Write and Remove
	Force  bool          // for Remove: the mover's node cannot confirm its end
	Lost   string        // for a restart: why the mover was lost, one of build.LostReasons
}
