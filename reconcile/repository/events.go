package repository

import (
	"context"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/reconcile/maintenance"
)

// Reasons of the Kubernetes Events on backup repositories.
const (
	EventMaintained    = "MaintenanceSucceeded"
	EventNotMaintained = "MaintenanceFailed"
	EventSkipped       = "MaintenanceSkipped"
)

// report updates the metrics of a repository and reports a changed reason why it is not maintained.
func (r *Reconciler) report(ctx context.Context, key string, object *velerov1.BackupRepository, step maintenance.Step) {
	switch step.Reason {
	case maintenance.NotKopia, maintenance.ReadOnly, maintenance.Deleting:
		r.Metrics.Excluded(object.Name)
	case maintenance.NotReady, maintenance.NoLocation, maintenance.AlreadyRunning, "":
		r.exportAge(object)
	}
	changed := r.state(key).reported != step.Reason
	r.update(key, func(state *repositoryState) {
		state.reported = step.Reason
		if step.Action != maintenance.Start {
			state.place = place{}
		}
	})
	if !changed {
		return
	}
	klog.FromContext(ctx).V(2).Info("Maintenance is waiting", "repository", key, "reason", step.Reason)
	switch step.Reason {
	case maintenance.ReadOnly:
		r.Recorder.Eventf(referenceTo(object), corev1.EventTypeNormal, EventSkipped, "Maintenance skipped: BackupStorageLocation %s is read-only", object.Spec.BackupStorageLocation)
	case maintenance.NoLocation:
		r.Recorder.Eventf(referenceTo(object), corev1.EventTypeWarning, EventSkipped, "Maintenance skipped: BackupStorageLocation %s does not exist. Create it, or delete this repository", object.Spec.BackupStorageLocation)
	case maintenance.NotKopia, maintenance.NotReady, maintenance.Deleting, maintenance.AlreadyRunning:
	}
}

// exportAge exports when a repository was last maintained, and its maintenance frequency.
func (r *Reconciler) exportAge(object *velerov1.BackupRepository) {
	repository := maintenance.From(object)
	r.Metrics.Observe(object.Name, repository.Last, r.Policy.IntervalOf(repository))
}

// exportLoad exports the number of running jobs, and of due repositories without a job.
func (r *Reconciler) exportLoad() {
	running := r.running(r.jobs())
	r.lock.Lock()
	defer r.lock.Unlock()
	due := 0
	for _, state := range r.states {
		if state.queued || state.createFailed {
			due++
		}
	}
	r.Metrics.Load(running, due)
}

// reportRun reports a run to metrics, log and Events.
func (r *Reconciler) reportRun(ctx context.Context, object *velerov1.BackupRepository, why string, succeeded bool, took time.Duration) {
	r.Metrics.Ended(object.Name, succeeded, took)
	logger := klog.FromContext(ctx)
	if !succeeded {
		logger.Error(nil, "Maintenance failed", "repository", klog.KObj(object), "took", took, "message", why)
		r.Recorder.Eventf(referenceTo(object), corev1.EventTypeWarning, EventNotMaintained, "Maintenance failed after %s: %s", took.Round(time.Second), why)
		return
	}
	logger.Info("Maintenance succeeded", "repository", klog.KObj(object), "took", took)
	r.Recorder.Eventf(referenceTo(object), corev1.EventTypeNormal, EventMaintained, "Maintenance succeeded in %s", took.Round(time.Second))
}

// referenceTo returns the object reference for Events. Cached objects do not have their kind set.
func referenceTo(object *velerov1.BackupRepository) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "BackupRepository",
		Namespace: object.Namespace, Name: object.Name, UID: object.UID,
	}
}
