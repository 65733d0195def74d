package testenv

import (
	"context"
	"fmt"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	backups   = "backups"
	restores  = "restores"
	locations = "backupstoragelocations"
)

// WaitBackup returns the backup after done accepts it. The error contains the last observed state.
func (w *Env) WaitBackup(ctx context.Context, name string, done func(*velerov1.Backup) bool) (*velerov1.Backup, error) {
	return waitVelero(ctx, w, backups, name, done)
}

// WaitRestore returns the restore after done accepts it. The error contains the last observed state.
func (w *Env) WaitRestore(ctx context.Context, name string, done func(*velerov1.Restore) bool) (*velerov1.Restore, error) {
	return waitVelero(ctx, w, restores, name, done)
}

// WaitLocation waits until done accepts the default backup storage location.
func (w *Env) WaitLocation(ctx context.Context, done func(*velerov1.BackupStorageLocation) bool) error {
	_, err := waitVelero(ctx, w, locations, defaultLocation, done)
	return err
}

// WaitBackupGone waits until the backup is deleted.
func (w *Env) WaitBackupGone(ctx context.Context, name string) error {
	return waitGone(ctx, backupClient{w}, "backup", name, func(l *velerov1.BackupList) int { return len(l.Items) })
}

// backupClient lists and watches backups.
type backupClient struct{ *Env }

// List implements watched.
func (b backupClient) List(ctx context.Context, options metav1.ListOptions) (*velerov1.BackupList, error) {
	list := &velerov1.BackupList{}
	return list, b.Velero.Get().Namespace(b.Namespace).Resource(backups).VersionedParams(&options, metav1.ParameterCodec).Do(ctx).Into(list)
}

// Watch implements watched.
func (b backupClient) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return b.watchVelero(ctx, backups, options)
}

// watchVelero watches a resource of velero.io/v1.
func (w *Env) watchVelero(ctx context.Context, resource string, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	return w.Velero.Get().Namespace(w.Namespace).Resource(resource).VersionedParams(&options, metav1.ParameterCodec).Watch(ctx)
}

// waitVelero returns the object with that name after done accepts it.
func waitVelero[T runtime.Object](ctx context.Context, w *Env, resource, name string, done func(T) bool) (T, error) {
	var none T
	watcher, err := w.watchVelero(ctx, resource, named(name))
	if err != nil {
		return none, fmt.Errorf("watch %s in %s: %w", name, resource, err)
	}
	found, err := await(ctx, watcher, done)
	if err != nil {
		return none, fmt.Errorf("wait for %s in %s: %w", name, resource, err)
	}
	return found, nil
}
