package agent

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/reconcile/orphans"
)

// sweeper returns the sweeper that deletes orphaned objects during a term. It deletes snapshots in an order that
// cannot lose data.
func (a *assembly) sweeper(ctx context.Context, kinds []kind) *orphans.Sweeper {
	snapshots := func(ctx context.Context, orphan *metav1.PartialObjectMetadata) error {
		return a.exposing.RemoveOrphan(ctx, a.Flags.Namespace, orphan)
	}
	return &orphans.Sweeper{
		Served: func() bool {
			served, err := a.snapshots.Available(ctx)
			return served && err == nil
		},
		ForeignContent: func(name string) bool {
			content := a.snapshots.Content(name)
			return content == nil || content.Spec.VolumeSnapshotRef.Namespace != a.Flags.Namespace
		},
		Remove: map[string]func(context.Context, *metav1.PartialObjectMetadata) error{
			orphans.Claims: a.removeClaim, orphans.Snapshots: snapshots, orphans.Contents: snapshots,
		},
		Client: a.clients.metadata, Namespace: a.Flags.Namespace, Clock: a.Clock, Metrics: a.coordination,
		Interval: a.OrphanSweep,
		Owner: func(uid types.UID) (exists, done bool) {
			for _, k := range kinds {
				if exists, done := k.owner(uid); exists {
					return true, done
				}
			}
			return false, false
		},
	}
}

// removeClaim deletes an orphaned claim with its volume, even if the reclaim policy of its class is Retain.
func (a *assembly) removeClaim(ctx context.Context, orphan *metav1.PartialObjectMetadata) error {
	claim, err := a.clients.kube.CoreV1().PersistentVolumeClaims(orphan.Namespace).Get(ctx, orphan.Name, metav1.GetOptions{})
	if err != nil || claim.UID != orphan.UID {
		return err // the caller ignores that an orphan is already deleted
	}
	_, err = a.exposing.CleanUp(ctx, objects.MoverSpec{}, exposer.Existing{Claims: []*corev1.PersistentVolumeClaim{claim}})
	return err
}

// owner reports whether a resource of this kind has the UID, and whether it needs no further action.
func (k *kindController[T]) owner(uid types.UID) (exists, done bool) {
	for _, object := range k.resources.ByIndex(informers.ByUID, string(uid)) {
		return true, k.transfers.Kind.Get(object).Settled()
	}
	return false, false
}
