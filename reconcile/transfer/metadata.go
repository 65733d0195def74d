package transfer

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

// commonState returns the part of the state that every kind stores in its metadata.
func commonState(object metav1.Object, finalizer string) State {
	restarts, err := strconv.Atoi(object.GetAnnotations()[api.AnnotationRestarts])
	if err != nil {
		restarts = 0
	}
	moved, err := time.Parse(time.RFC3339, object.GetAnnotations()[api.AnnotationMoved])
	if err != nil {
		moved = time.Time{}
	}
	return State{
		Exposer:          object.GetAnnotations()[api.AnnotationExposer],
		MoverSucceededAt: moved,
		Deleting:         object.GetDeletionTimestamp() != nil,
		Finalizer:        slices.Contains(object.GetFinalizers(), finalizer),
		CreatedAt:        object.GetCreationTimestamp().Time,
		Restarts:         restarts,
	}
}

// phaseOf reads status.phase. Velero's server creates resources with an empty phase, which means New.
func phaseOf[P ~string](phase P) Phase { return Phase(cmp.Or(phase, P(New))) }

// setCommon writes finalizer, annotations, the label by which Velero's agents count the transfers being prepared, and
// the label of transfers that need no further action.
func setCommon(object metav1.Object, state State, finalizer string) {
	switch has := slices.Contains(object.GetFinalizers(), finalizer); {
	case has && !state.Finalizer:
		object.SetFinalizers(slices.DeleteFunc(object.GetFinalizers(), func(f string) bool { return f == finalizer }))
	case !has && state.Finalizer && !state.Deleting: // the API server rejects new finalizers on a deleting object
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
	labels := object.GetLabels()
	if state.Phase.IsPreparing() {
		labels = setKey(labels, api.LabelExposing, "true")
	} else {
		delete(labels, api.LabelExposing)
	}
	if state.Settled() {
		labels = setKey(labels, api.LabelDone, "true")
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

func timeOf(stamp *metav1.Time) time.Time { return ptr.Deref(stamp, metav1.Time{}).Time }

func timestamp(at time.Time) *metav1.Time {
	if at.IsZero() {
		return nil
	}
	return new(metav1.NewTime(at))
}
