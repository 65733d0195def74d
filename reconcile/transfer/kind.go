package transfer

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lateen-project/lateen/exposer/build"
)

// Object is a custom resource of one of the kinds.
type Object interface {
	comparable
	metav1.Object
	runtime.Object
}

// Kind says how one kind of custom resource takes part in a transfer. Its functions are pure.
type Kind[T Object] struct {
	Name     string // as in metrics: the resource's name in the singular
	PodLabel string // the label by which Velero finds its mover pods
	GVK      schema.GroupVersionKind
	Copy     func(T) T // deep
	Get      func(T) State
	Set      func(T, State)
	Movement func(object T, resourceTimeout time.Duration) build.Movement // but for what is the same for a whole kind
	Result   func(message string) (Outcome, error)
	Restores bool // it writes to a volume
	Delivers bool // what is restored has to be delivered
}

// Groups of movers that the scheduler spreads over nodes (Velero's exposer-pod-group).
const (
	groupSnapshots = "snapshot-exposer"
	groupRestores  = "generic-restore-exposer"
)

// veleroMover is the data mover that is meant by its name or by none (velero-protocol 1.2).
const veleroMover = "velero"

func foreign(dataMover string) bool { return dataMover != "" && dataMover != veleroMover }
