package transfer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// Object is a custom resource of one of the kinds.
type Object interface {
	comparable
	metav1.Object
	runtime.Object
}

// Kind describes how the transfer state machine reads and writes one kind of custom resource. Its functions are
// pure.
type Kind[T Object] struct {
	api.Kind
	Copy func(T) T // deep copy
	Get  func(T) State
	Set  func(T, State)
	// MoverSpec returns the mover spec without GVK, PodLabel, Attempt and ExposingNode, which the caller sets.
	MoverSpec func(object T, resourceTimeout time.Duration) objects.MoverSpec
	Result    func(message string) (Outcome, error)
}

// Pod groups that the scheduler spreads over nodes (Velero's exposer-pod-group).
const (
	groupSnapshots = "snapshot-exposer"
	groupRestores  = "generic-restore-exposer"
)

// Velero's own data movers. An empty name means veleroMover (velero-protocol 1.2). Velero 1.19 writes fileMover
// where 1.18 writes none. It adds blockMover for changed blocks (pkg/util/datamover).
const (
	veleroMover = "velero"
	fileMover   = "velero-fs"
	blockMover  = "velero-block"
)

func foreign(dataMover string) bool {
	return !slices.Contains([]string{"", veleroMover, fileMover, blockMover}, dataMover)
}

// refuseFields returns why a transfer with fields in its spec that this build does not know is not supported; empty if it has
// none but these, which change nothing for an agent. Velero's development branch has them (d2241adba, 2026-08-21, and design
// volume-data-inplace-restore):
//   - parentSnapshot, restoreType: the mover reads them
//   - sourceFSType: Velero's server keeps it for the restore
//   - csiSnapshot of a DataDownload: of incremental in-place restores by velero-block, which are refused
//   - targetVolume.fsType: the exposer reads it for a volume that changes its mode, as those of velero-block do
func refuseFields(transfer metav1.Object, harmless ...string) string {
	unknown := slices.DeleteFunc(api.UnknownFields(transfer), func(path string) bool { return slices.Contains(harmless, path) })
	if len(unknown) == 0 {
		return ""
	}
	return fmt.Sprintf("spec.%s is not known to this version of Lateen, so it may change what is to be done; upgrade Lateen, or use Velero's node-agent",
		strings.Join(unknown, ", spec."))
}

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

// commonState returns the part of the state that every kind stores in its metadata.
func commonState(object metav1.Object, finalizer string) State {
	restarts, err := strconv.Atoi(object.GetAnnotations()[api.AnnotationRestarts])
	if err != nil {
		restarts = 0
	}
	moved, _ := time.Parse(time.RFC3339, object.GetAnnotations()[api.AnnotationMoved]) // zero if it is no time
	return State{
		Exposer:          object.GetAnnotations()[api.AnnotationExposer],
		MoverSucceededAt: moved,
		Deleting:         object.GetDeletionTimestamp() != nil,
		Finalizer:        slices.Contains(object.GetFinalizers(), finalizer),
		CreatedAt:        object.GetCreationTimestamp().Time,
		Restarts:         restarts,
		StorageClass:     object.GetAnnotations()[api.AnnotationStorageClass],
	}
}

// phaseOf reads status.phase. Velero's server creates resources with an empty phase, which means New.
func phaseOf[P ~string](phase P) Phase { return Phase(cmp.Or(phase, P(New))) }

// setCommon writes finalizer, annotations, the label by which Velero's agents count the transfers being prepared, the
// label of transfers that need no further action, and that of the node whose agent acts.
func setCommon(object metav1.Object, state State, finalizer string) {
	switch has := slices.Contains(object.GetFinalizers(), finalizer); {
	case !state.Finalizer:
		object.SetFinalizers(slices.DeleteFunc(object.GetFinalizers(), func(f string) bool { return f == finalizer }))
	case !has && !state.Deleting: // the API server rejects new finalizers on a deleting object
		object.SetFinalizers(append(object.GetFinalizers(), finalizer))
	}
	if state.Exposer != "" {
		object.SetAnnotations(setKey(object.GetAnnotations(), api.AnnotationExposer, state.Exposer))
	} else {
		delete(object.GetAnnotations(), api.AnnotationExposer)
	}
	if state.Restarts > 0 {
		object.SetAnnotations(setKey(object.GetAnnotations(), api.AnnotationRestarts, strconv.Itoa(state.Restarts)))
	}
	if !state.MoverSucceededAt.IsZero() {
		object.SetAnnotations(setKey(object.GetAnnotations(), api.AnnotationMoved, state.MoverSucceededAt.UTC().Format(time.RFC3339)))
	}
	if state.StorageClass != "" {
		object.SetAnnotations(setKey(object.GetAnnotations(), api.AnnotationStorageClass, state.StorageClass))
	} else {
		delete(object.GetAnnotations(), api.AnnotationStorageClass)
	}
	labels := object.GetLabels()
	if state.Phase.IsPreparing() {
		labels = setKey(labels, api.LabelExposing, "true")
	} else {
		delete(labels, api.LabelExposing)
	}
	if state.Settled() {
		labels = setKey(labels, api.LabelDone, "true")
	}
	if state.Assigned() {
		labels = setKey(labels, api.LabelNode, api.LabelValue(state.Node))
	}
	object.SetLabels(labels)
}

// newMoverSpec returns the part of the mover spec that comes from the metadata.
func newMoverSpec(object metav1.Object) objects.MoverSpec {
	return objects.MoverSpec{Name: object.GetName(), Namespace: object.GetNamespace(), UID: object.GetUID()}
}

// command returns the command line of a mover (velero-protocol 3.1). The exposer adds the arguments that depend on
// the volume.
func command(object metav1.Object, resourceTimeout time.Duration, description ...string) []string {
	return append(description, "--volume-path=/"+string(object.GetUID()), "--resource-timeout="+resourceTimeout.String())
}

func setKey(values map[string]string, key, value string) map[string]string {
	if values == nil {
		values = map[string]string{}
	}
	values[key] = value
	return values
}
