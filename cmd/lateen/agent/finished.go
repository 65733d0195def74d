package agent

import (
	"cmp"
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/finished"
)

// deleteFinished deletes, until the term ends, finished DataUploads and DataDownloads after --finished-ttl.
func (p *assembly) deleteFinished(ctx context.Context) {
	if p.Flags.FinishedTTL == 0 {
		return
	}
	velero, namespace := p.clients.velero, p.Flags.Namespace
	uploads, downloads := velero.DataUploads(namespace), velero.DataDownloads(namespace)
	collector := finished.Collector{
		TTL: p.Flags.FinishedTTL, Clock: p.Clock,
		Pause: func(ctx context.Context) bool { return p.sleep(ctx, donePause) },
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
	for p.sleep(ctx, cmp.Or(p.OrphanSweep, doneInterval)) {
		if err := collector.Sweep(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to delete finished transfers")
		}
	}
}
