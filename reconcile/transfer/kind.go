package transfer

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/lateen-project/lateen/exposer/objects"
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
	Movement func(object T, resourceTimeout time.Duration) objects.MoverSpec // but for what is the same for a whole kind
	Result   func(message string) (Outcome, error)
	Restores bool // it writes to a volume
	Rebinds  bool // what is restored has to be delivered
}

// Groups of movers that the scheduler spreads over nodes (Velero's exposer-pod-group).
const (
	groupSnapshots = "snapshot-exposer"
	groupRestores  = "generic-restore-exposer"
)

// The data movers that are Velero's own. The first is meant by its name or by none (velero-protocol 1.2); Velero 1.19
// writes the second where 1.18 writes none, and has the third for changed blocks (pkg/util/datamover).
const (
	veleroMover = "velero"
	fileMover   = "velero-fs"
	blockMover  = "velero-block"
)

func foreign(dataMover string) bool {
	return !slices.Contains([]string{"", veleroMover, fileMover, blockMover}, dataMover)
}

// refuseMover says why a transfer of that data mover cannot be served; empty if it can.
func refuseMover(dataMover, remedy string) string {
	if dataMover != blockMover {
		return ""
	}
	return fmt.Sprintf("data mover %s is not supported by Lateen; %s", dataMover, remedy)
}
