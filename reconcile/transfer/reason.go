package transfer

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
)

// Reason is a stable identifier of why a step is taken. Events and metrics carry it.
type Reason string

// The reasons of steps. Reasons of terminal phases are values of the label reason of
// lateen_transfers_finished_total.
const (
	ReasonQueued        Reason = "queued" // an upload, before it is accepted: it gets its finalizer
	ReasonAccepted      Reason = "accepted"
	ReasonTakenOver     Reason = "taken_over"
	ReasonPrepared      Reason = "prepared"
	ReasonStarted       Reason = "started"
	ReasonProgress      Reason = "progress"
	ReasonRestarted     Reason = "restarted"
	ReasonMoved         Reason = "moved"
	ReasonCanceling     Reason = "canceling"
	ReasonDeleting      Reason = "deleting"
	ReasonStale         Reason = "stale_mover"
	ReasonCancelTimeout Reason = "cancel_timeout"
	ReasonCleaned       Reason = "cleaned"

	ReasonCompleted      Reason = "completed"
	ReasonCanceled       Reason = "canceled"
	ReasonUnsupported    Reason = "unsupported"
	ReasonNotEligible    Reason = "not_eligible"
	ReasonSourceGone     Reason = "source_gone"
	ReasonPrepareTimeout Reason = "prepare_timeout"
	ReasonCannotRun      Reason = "cannot_run"
	ReasonMoverFailed    Reason = "mover_failed"
	ReasonMoverLost      Reason = "mover_lost"
	ReasonMoverStalled   Reason = "mover_stalled"
	ReasonUnconfirmed    Reason = "restore_unconfirmed"
	ReasonUnreadable     Reason = "result_unreadable"
	ReasonRebindFailed   Reason = "rebind_failed"
)

// SetFailure records why a transfer failed, in a form that programs can read. The message is for people.
func SetFailure(object metav1.Object, reason Reason) {
	object.SetAnnotations(setKey(object.GetAnnotations(), api.AnnotationFailure, string(reason)))
}

// FailureOf returns the recorded reason of a failure; empty if none is recorded, as by an agent of Velero.
func FailureOf(object metav1.Object) Reason {
	return Reason(object.GetAnnotations()[api.AnnotationFailure])
}

// TerminalReasons returns the possible reasons of each terminal phase. Metrics start at 0 for each pair.
func TerminalReasons() map[Phase][]Reason {
	return map[Phase][]Reason{
		Completed: {ReasonCompleted},
		Canceled:  {ReasonCanceled},
		Failed: {
			ReasonUnsupported, ReasonNotEligible, ReasonSourceGone, ReasonPrepareTimeout, ReasonCannotRun,
			ReasonMoverFailed, ReasonMoverLost, ReasonMoverStalled, ReasonUnconfirmed, ReasonUnreadable, ReasonRebindFailed,
		},
	}
}
