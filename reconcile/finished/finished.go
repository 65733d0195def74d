// Package finished deletes DataUploads and DataDownloads that neither Velero nor Lateen reads any more. Velero deletes
// them only together with their Backup or Restore (velero#8764).
package finished

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/exposer/api"
)

// Collector deletes transfers that ended longer than TTL ago and whose Backup or Restore is done or deleted. Then the
// backup storage has all that Velero needs of them: a restore, and the deletion of a backup, read DataUploads from the
// tarball of the backup. PodVolumeBackups stay: the deletion of a backup reads them from the API server.
type Collector struct {
	Kinds []Kind
	TTL   time.Duration
	// Pause is called after each deletion. It returns false if the sweep must end.
	Pause func(context.Context) bool
	Clock clock.PassiveClock
}

// Kind accesses one kind of transfers in Velero's namespace, and their owners.
type Kind struct {
	Resource  string // such as datauploads
	OwnerKind string // Backup or Restore
	List      func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Delete    func(ctx context.Context, name string, options metav1.DeleteOptions) error
	// Owner returns the UID and the phase of a Backup or Restore.
	Owner func(ctx context.Context, name string) (types.UID, string, error)
}

// expired is a transfer that may be deleted once its owner is done.
type expired struct {
	name, version string
	uid           types.UID
	owner         metav1.OwnerReference
}

// Sweep deletes once. A failure does not stop the rest of the sweep.
func (c *Collector) Sweep(ctx context.Context) error {
	var all []error
	for _, kind := range c.Kinds {
		deleted, err := c.sweep(ctx, kind)
		if err != nil && ctx.Err() == nil {
			all = append(all, err)
		}
		if deleted > 0 {
			klog.FromContext(ctx).Info("Deleted finished transfers", "resource", kind.Resource, "count", deleted, "ttl", c.TTL)
		}
	}
	return errors.Join(all...)
}

// sweep deletes the expired transfers of one kind. One that cannot be deleted does not stop those behind it; the error is the first.
func (c *Collector) sweep(ctx context.Context, kind Kind) (deleted int, err error) {
	transfers, err := c.expired(ctx, kind)
	if err != nil {
		return 0, fmt.Errorf("list finished %s: %w", kind.Resource, err)
	}
	busy := map[types.UID]bool{} // owners that are not done, or cannot be read
	var first error
	for _, transfer := range transfers {
		if busy[transfer.owner.UID] {
			continue
		}
		// Read again before each deletion: Velero's server fails to delete a backup whose DataUpload is gone before it
		// deletes that one itself.
		uid, phase, err := kind.Owner(ctx, transfer.owner.Name)
		if err != nil && !apierrors.IsNotFound(err) {
			first, busy[transfer.owner.UID] = cmp.Or(first, fmt.Errorf("get %s %s: %w", kind.OwnerKind, transfer.owner.Name, err)), true
			continue
		}
		if err == nil && uid == transfer.owner.UID && !done(phase) {
			busy[uid] = true
			continue
		}
		err = kind.Delete(ctx, transfer.name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &transfer.uid, ResourceVersion: &transfer.version}})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err): // deleted or changed; the next sweep reads it again
		case err != nil:
			first = cmp.Or(first, fmt.Errorf("delete finished %s %s: %w", kind.Resource, transfer.name, err))
		default:
			deleted++
		}
		if !c.Pause(ctx) {
			break
		}
	}
	return deleted, first
}

// expired lists the transfers that ended longer than TTL ago. A transfer with api.LabelDone is terminal and cleaned up.
// Without a time of completion, as Velero's agents leave some, the age is unknown.
func (c *Collector) expired(ctx context.Context, kind Kind) (found []expired, err error) {
	options := metav1.ListOptions{LabelSelector: api.LabelDone + "=true"}
	err = pager.New(kind.List).EachListItem(ctx, options, func(item runtime.Object) error {
		object, ended := completed(item)
		if object == nil || ended.IsZero() || object.GetDeletionTimestamp() != nil || c.Clock.Since(ended.Time) <= c.TTL {
			return nil
		}
		for _, owner := range object.GetOwnerReferences() {
			if owner.Kind == kind.OwnerKind {
				found = append(found, expired{name: object.GetName(), version: object.GetResourceVersion(), uid: object.GetUID(), owner: owner})
			}
		}
		return nil
	})
	return found, err
}

// completed returns the metadata of a transfer and when it ended; nil if the object is no transfer that may be deleted.
func completed(item runtime.Object) (metav1.Object, *metav1.Time) {
	switch object := item.(type) {
	case *velerov2alpha1.DataUpload:
		return object, object.Status.CompletionTimestamp
	case *velerov2alpha1.DataDownload:
		return object, object.Status.CompletionTimestamp
	}
	return nil, nil
}

// done reports whether Velero's server has finished a Backup or Restore. Phase Deleting is none: the server then deletes
// the transfers itself.
func done(phase string) bool {
	switch phase {
	case string(velerov1.BackupPhaseCompleted), string(velerov1.BackupPhasePartiallyFailed), string(velerov1.BackupPhaseFailed), string(velerov1.BackupPhaseFailedValidation):
		return true
	}
	return false
}
