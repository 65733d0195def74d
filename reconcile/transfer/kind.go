package transfer

import (
	"fmt"
	"slices"
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
	// Movement returns the mover spec without GVK, PodLabel, Attempt and ExposingNode, which the caller sets.
	Movement func(object T, resourceTimeout time.Duration) objects.MoverSpec
	Result   func(message string) (Outcome, error)
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

// refuseMover returns why transfers of the data mover are not supported; empty if they are.
func refuseMover(dataMover, remedy string) string {
	if dataMover != blockMover {
		return ""
	}
	return fmt.Sprintf("data mover %s is not supported by Lateen; %s", dataMover, remedy)
}
