package agent

import (
	"cmp"
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/finished"
)

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
