package exposer

import (
	"context"
	"errors"
	"fmt"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/typed/volumesnapshot/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/handover"
	"github.com/lateen-project/lateen/exposer/objects"
)

// Snapshots reads and changes volume snapshots.
type Snapshots interface {
	// Available reports whether the cluster has VolumeSnapshots. If so, the caches below are complete when it
	// returns. An error means that it is not known.
	Available(ctx context.Context) (bool, error)
	// Snapshot returns a cached VolumeSnapshot, or nil.
	Snapshot(namespace, name string) *snapshotv1.VolumeSnapshot
	// Content returns a cached VolumeSnapshotContent, or nil.
	Content(name string) *snapshotv1.VolumeSnapshotContent
	// Deleted records that a snapshot or content was deleted; the caches return it as deleting from now on.
	Deleted(object metav1.Object)
	// Client changes snapshots and contents, and reads what must not be stale.
	Client() snapshotclient.SnapshotV1Interface
}

// handOver gives the snapshot handle a second owner in Velero's namespace and deletes the originals. It runs until
// it must wait, and returns what for, or until the originals are deleting. size is the required size of a volume created
// from the snapshot, or 0.
func (e *Exposer) handOver(ctx context.Context, move objects.MoverSpec) (waits string, size resource.Quantity, err error) {
	served, err := e.served(ctx)
	switch {
	case err != nil:
		return "", size, err
	case !served:
		return "", size, &TerminalError{errors.New("snapshot.storage.k8s.io is not installed")}
	}
	run := e.runHandover(move)
	for range maxHandoverSteps {
		step, description := run.Next()
		switch step {
		case handover.Finished:
			return "", run.RestoreSize(), nil
		case handover.AwaitSnapshot:
			return description, size, nil
		case handover.Fail:
			return "", size, &TerminalError{errors.New(description)}
		case handover.NameConflict:
			return "", size, errors.New(description)
		default: // a failure of these steps loses nothing
		}
		if err := run.step(ctx, step); err != nil {
			return "", size, err
		}
	}
	return "", size, fmt.Errorf("hand over snapshot %s: too many steps", run.Source)
}

// cleanSnapshots undoes a hand-over from any point, until it must wait, and returns what for. Neither pair is left
// if waits is empty.
func (e *Exposer) cleanSnapshots(ctx context.Context, move objects.MoverSpec, handedOver bool) (waits string, err error) {
	served, err := e.served(ctx)
	if err != nil || !served {
		return "", err
	}
	run := e.runHandover(move)
	run.handedOver = handedOver
	for range maxHandoverSteps {
		step, description := run.NextCleanup()
		switch step {
		case handover.Finished:
			return "", nil
		case handover.AwaitSnapshot:
			return description, nil
		default:
			if err := run.step(ctx, step); err != nil {
				return "", err
			}
		}
	}
	return "", fmt.Errorf("delete snapshot %s: too many steps", run.Source)
}

// RemoveOrphan deletes what is left of a hand-over whose custom resource is deleted or terminal. orphan is a backup
// VolumeSnapshot or its content. A content has no namespace, so namespace is Velero's. The caller repeats it until
// nothing is left.
func (e *Exposer) RemoveOrphan(ctx context.Context, namespace string, orphan metav1.Object) error {
	_, err := e.cleanSnapshots(ctx, objects.MoverSpec{
		Namespace: namespace, Name: orphan.GetName(), UID: types.UID(orphan.GetLabels()[api.LabelOwnerUID]),
		Source: objects.Source{Snapshot: &objects.SnapshotSource{}}, // the backup VolumeSnapshot's annotations name it
	}, false)
	return err
}

// diagnoseSnapshots returns what blocks the hand-over. A new coordinator may have no snapshot caches yet.
func (e *Exposer) diagnoseSnapshots(ctx context.Context, move objects.MoverSpec) string {
	if served, err := e.served(ctx); err != nil || !served {
		return ""
	}
	run := e.runHandover(move)
	if step, description := run.Next(); step == handover.AwaitSnapshot || step == handover.Fail || step == handover.NameConflict {
		return description
	}
	if backup := run.Backup.Snapshot; backup != nil && backup.Status != nil && backup.Status.Error != nil && backup.Status.Error.Message != nil {
		return fmt.Sprintf("VolumeSnapshot %s/%s: %s", backup.Namespace, backup.Name, *backup.Status.Error.Message)
	}
	return ""
}

func (e *Exposer) served(ctx context.Context) (bool, error) {
	if e.Snapshots == nil {
		return false, nil
	}
	return e.Snapshots.Available(ctx)
}
