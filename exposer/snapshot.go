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

	"github.com/lateen-project/lateen/exposer/handover"
	"github.com/lateen-project/lateen/exposer/objects"
)

// Snapshots is where an exposer sees and changes the snapshots of volumes.
type Snapshots interface {
	// Available tells whether the cluster has VolumeSnapshots. If so, the caches below are complete when it
	// returns. An error is that nobody knows.
	Available(ctx context.Context) (bool, error)
	// Snapshot is a cached VolumeSnapshot, or nil.
	Snapshot(namespace, name string) *snapshotv1.VolumeSnapshot
	// Content is a cached VolumeSnapshotContent, or nil.
	Content(name string) *snapshotv1.VolumeSnapshotContent
	// Deleted notes that one of either was deleted: the caches show it so from now on.
	Deleted(object metav1.Object)
	// Client changes them, and reads what must not be stale.
	Client() snapshotclient.SnapshotV1Interface
}

// handOver walks the ladder by which the snapshot's handle gets an owner in Velero's namespace, until it has
// to wait (and says for what) or the originals are on their way out. Before the original VolumeSnapshot is
// deleted, rehearse has to succeed. Size is what a volume made of the snapshot needs, or 0.
func (e *Exposer) handOver(ctx context.Context, move objects.MoverSpec, rehearse func(context.Context) error) (waits string, size resource.Quantity, err error) {
	served, err := e.served(ctx)
	switch {
	case err != nil:
		return "", size, err
	case !served:
		return "", size, &TerminalError{errors.New("snapshot.storage.k8s.io is not installed")}
	}
	climb := e.runHandover(move)
	for range maxHandoverSteps {
		rung, description := climb.Next()
		switch rung {
		case handover.Finished:
			return "", climb.RestoreSize(), nil
		case handover.AwaitSnapshot:
			return description, size, nil
		case handover.Fail:
			return "", size, &TerminalError{errors.New(description)}
		case handover.NameConflict:
			return "", size, errors.New(description)
		case handover.DeleteOriginal:
			if err := rehearse(ctx); err != nil {
				return "", size, err
			}
		default: // nothing is at stake yet, or any more
		}
		if err := climb.step(ctx, rung); err != nil {
			return "", size, err
		}
	}
	return "", size, fmt.Errorf("hand snapshot %s over: it does not come to an end", climb.Source)
}

// cleanSnapshots walks the ladder that undoes a hand-over wherever it stopped, until it has to wait, and says for what.
// Neither pair is left if waits is empty.
func (e *Exposer) cleanSnapshots(ctx context.Context, move objects.MoverSpec, handedOver bool) (waits string, err error) {
	served, err := e.served(ctx)
	if err != nil || !served {
		return "", err
	}
	climb := e.runHandover(move)
	climb.handedOver = handedOver
	for range maxHandoverSteps {
		rung, description := climb.NextCleanup()
		switch rung {
		case handover.Finished:
			return "", nil
		case handover.AwaitSnapshot:
			return description, nil
		default:
			if err := climb.step(ctx, rung); err != nil {
				return "", err
			}
		}
	}
	return "", fmt.Errorf("remove snapshot %s: it does not come to an end", climb.Source)
}

// RemoveOrphan removes what is left of a hand-over whose custom resource is gone or over: the orphan is a
// backup VolumeSnapshot or its content, which has no namespace; Velero's is given. It is called again until
// nothing is left.
func (e *Exposer) RemoveOrphan(ctx context.Context, namespace string, orphan metav1.Object) error {
	_, err := e.cleanSnapshots(ctx, objects.MoverSpec{
		Namespace: namespace, Name: orphan.GetName(), UID: types.UID(orphan.GetLabels()[objects.LabelOwnerUID]),
		Source: objects.Source{Snapshot: &objects.SnapshotSource{}}, // the backup VolumeSnapshot remembers it
	}, false)
	return err
}

// diagnoseSnapshots says what keeps the hand-over from going on. A new coordinator may have no caches of snapshots yet.
func (e *Exposer) diagnoseSnapshots(ctx context.Context, move objects.MoverSpec) string {
	if served, err := e.served(ctx); err != nil || !served {
		return ""
	}
	climb := e.runHandover(move)
	if rung, description := climb.Next(); rung == handover.AwaitSnapshot || rung == handover.Fail || rung == handover.NameConflict {
		return description
	}
	if backup := climb.Backup.Snapshot; backup != nil && backup.Status != nil && backup.Status.Error != nil && backup.Status.Error.Message != nil {
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
