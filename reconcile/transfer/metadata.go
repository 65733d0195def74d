package transfer

import (
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/objects"
)

// What Velero's server and other agents look for on the resources, and what Lateen remembers there.
const (
	labelExposing        = "velero.io/expose-on-going"
	annotationRestarts   = "lateen.dev/mover-restarts"
	annotationRestarting = "lateen.dev/restarting" // "true" while the pod of a mover that was given up is removed
	annotationMoved      = "lateen.dev/moved"      // when the mover of a restore succeeded (RFC 3339)
	annotationAcceptor   = "lateen.dev/acceptor"   // whose agent of Lateen first took part in it; gone once it is cleaned up
)

// commonState is what the metadata of every kind says in the same way.
func commonState(object metav1.Object, finalizer string) State {
	restarts, err := strconv.Atoi(object.GetAnnotations()[annotationRestarts])
	if err != nil {
		restarts = 0
	}
	moved, err := time.Parse(time.RFC3339, object.GetAnnotations()[annotationMoved])
	if err != nil {
		moved = time.Time{}
	}
	return State{
		Exposer:          object.GetAnnotations()[annotationAcceptor],
		MoverSucceededAt: moved,
		Deleting:         object.GetDeletionTimestamp() != nil,
		Finalizer:        slices.Contains(object.GetFinalizers(), finalizer),
		CreatedAt:        object.GetCreationTimestamp().Time,
		Restarts:         restarts,
		Restarting:       object.GetAnnotations()[annotationRestarting] != "",
	}
}

// setCommon writes what belongs into the metadata: finalizer, restarts, and the label by which
// Velero's agents count what is being prepared.
func setCommon(object metav1.Object, state State, finalizer string) {
	switch has := slices.Contains(object.GetFinalizers(), finalizer); {
	case has && !state.Finalizer:
		object.SetFinalizers(slices.DeleteFunc(object.GetFinalizers(), func(f string) bool { return f == finalizer }))
	case !has && state.Finalizer && !state.Deleting: // the API server refuses new ones while it deletes
		object.SetFinalizers(append(object.GetFinalizers(), finalizer))
	}
	if state.Exposer != "" {
		object.SetAnnotations(setKey(object.GetAnnotations(), annotationAcceptor, state.Exposer))
	} else {
		delete(object.GetAnnotations(), annotationAcceptor)
	}
	if state.Restarts > 0 {
		object.SetAnnotations(setKey(object.GetAnnotations(), annotationRestarts, strconv.Itoa(state.Restarts)))
	}
	if state.Restarting {
		object.SetAnnotations(setKey(object.GetAnnotations(), annotationRestarting, "true"))
	} else {
		delete(object.GetAnnotations(), annotationRestarting)
	}
	if !state.MoverSucceededAt.IsZero() {
		object.SetAnnotations(setKey(object.GetAnnotations(), annotationMoved, state.MoverSucceededAt.UTC().Format(time.RFC3339)))
	}
	labels := object.GetLabels()
	if state.Phase == Accepted || state.Phase == Prepared {
		labels = setKey(labels, labelExposing, "true")
	} else {
		delete(labels, labelExposing)
	}
	object.SetLabels(labels)
}

// commonMovement is what the metadata of every kind says in the same way.
func commonMovement(object metav1.Object) objects.MoverSpec {
	return objects.MoverSpec{Name: object.GetName(), Namespace: object.GetNamespace(), UID: object.GetUID()}
}

// command is how a mover is told what to do (velero-protocol 3.1); the exposer adds what depends on the volume.
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
