package agent

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/reconcile/finished"
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
	return a.exposing.Delete(ctx, exposer.Existing{Claims: []*corev1.PersistentVolumeClaim{claim}})
}

// owner reports whether a resource of this kind has the UID, and whether it needs no further action.
func (k *kindController[T]) owner(uid types.UID) (exists, done bool) {
	for _, object := range k.resources.ByIndex(informers.ByUID, string(uid)) {
		return true, k.transfers.Kind.Get(object).Settled()
	}
	return false, false
}

const (
	// doneInterval is the interval between two passes of labelDone.
	doneInterval = 10 * time.Minute
	// donePause is the pause between two labels. Every agent receives the change of a resource.
	donePause = 200 * time.Millisecond
)

// deleteFinished deletes, until the term ends, finished DataUploads and DataDownloads after --finished-ttl.
func (a *assembly) deleteFinished(ctx context.Context) {
	if a.Flags.FinishedTTL == 0 {
		return
	}
	velero, namespace := a.clients.velero, a.Flags.Namespace
	uploads, downloads := velero.DataUploads(namespace), velero.DataDownloads(namespace)
	collector := finished.Collector{
		TTL: a.Flags.FinishedTTL, Clock: a.Clock,
		Pause: func(ctx context.Context) bool { return a.sleep(ctx, donePause) },
		Kinds: []finished.Kind{{
			Resource: api.DataUpload().Resource, OwnerKind: "Backup", Delete: uploads.Delete,
			List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return uploads.List(ctx, options)
			},
			Owner: func(ctx context.Context, name string) (types.UID, string, error) {
				backup, err := velero.Backup(ctx, namespace, name)
				return backup.UID, string(backup.Status.Phase), err
			},
		}, {
			Resource: api.DataDownload().Resource, OwnerKind: "Restore", Delete: downloads.Delete,
			List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				return downloads.List(ctx, options)
			},
			Owner: func(ctx context.Context, name string) (types.UID, string, error) {
				restore, err := velero.Restore(ctx, namespace, name)
				return restore.UID, string(restore.Status.Phase), err
			},
		}},
	}
	for a.sleep(ctx, cmp.Or(a.OrphanSweep, doneInterval)) {
		if err := collector.Sweep(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to delete finished transfers")
		}
	}
}

// labelDone labels, until the term ends, what other agents finished. A resource must be settled in two passes: after it
// became terminal, Velero's agent still cleans up.
func (a *assembly) labelDone(ctx context.Context, kinds []kind) {
	before := map[string]bool{}
	for a.sleep(ctx, cmp.Or(a.OrphanSweep, doneInterval)) {
		now := map[string]bool{}
		for _, k := range kinds {
			for _, key := range k.settled() {
				name := k.name() + "/" + key
				now[name] = true
				if !before[name] {
					continue
				}
				if err := k.labelDone(ctx, key); err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).Error(err, "Failed to label a finished transfer", "kind", k.name(), "object", key)
				}
				if !a.sleep(ctx, donePause) {
					return
				}
			}
		}
		before = now
	}
}

// sleep returns false if the context ends first.
func (a *assembly) sleep(ctx context.Context, d time.Duration) bool {
	timer := a.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}
