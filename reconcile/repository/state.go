package repository

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/reconcile/writes"
)

// All state of a Reconciler may be lost: the next coordinator reads it from the API server.

// note updates the metrics of a repository and reports a changed reason why it is not maintained.
func (m *Reconciler) note(ctx context.Context, key string, object *velerov1.BackupRepository, step maintenance.Step) {
	switch step.Reason {
	case maintenance.NotKopia, maintenance.ReadOnly, maintenance.Deleting:
		m.Metrics.Excluded(object.Name)
	case maintenance.NotReady, maintenance.NoLocation, maintenance.AlreadyRunning, "":
		m.show(object)
	}
	m.lock.Lock()
	if m.states == nil {
		m.states = map[string]maintenance.Reason{}
	}
	changed := m.states[key] != step.Reason
	m.states[key] = step.Reason
	m.lock.Unlock()
	if step.Action != maintenance.Start {
		m.release(key)
		m.setCreateFailed(key, false)
	}
	if !changed {
		return
	}
	klog.FromContext(ctx).V(2).Info("Maintenance is waiting", "repository", key, "reason", step.Reason)
	switch step.Reason {
	case maintenance.ReadOnly:
		m.Recorder.Eventf(referenceTo(object), corev1.EventTypeNormal, EventSkipped, "Maintenance skipped: BackupStorageLocation %s is read-only", object.Spec.BackupStorageLocation)
	case maintenance.NoLocation:
		m.Recorder.Eventf(referenceTo(object), corev1.EventTypeWarning, EventSkipped, "Maintenance skipped: BackupStorageLocation %s does not exist. Create it, or delete this repository", object.Spec.BackupStorageLocation)
	case maintenance.NotKopia, maintenance.NotReady, maintenance.Deleting, maintenance.AlreadyRunning:
	}
}

// show exports when a repository was last maintained, and its maintenance frequency.
func (m *Reconciler) show(object *velerov1.BackupRepository) {
	repository := maintenance.From(object)
	m.Metrics.Observe(object.Name, repository.Last, m.Policy.FrequencyOf(repository))
}

// load exports the number of running jobs, and of due repositories without a job.
func (m *Reconciler) load() {
	running := m.running(m.jobs())
	m.lock.Lock()
	defer m.lock.Unlock()
	due := len(m.queued)
	for key := range m.createFailed {
		if _, held := m.queued[key]; !held {
			due++
		}
	}
	m.Metrics.Load(running, due)
}

func (m *Reconciler) forget(key string) {
	if object, known := m.overlay.Forget(key); known {
		m.Metrics.DeleteRepository(object.Name)
	}
	m.lock.Lock()
	delete(m.states, key)
	delete(m.failures, key)
	m.lock.Unlock()
	m.setCreateFailed(key, false)
	m.release(key)
}

// add records the written version of a job.
func (m *Reconciler) add(job *batchv1.Job) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.wrote == nil {
		m.wrote = map[types.UID]*batchv1.Job{}
	}
	m.wrote[job.UID] = job
}

// drop removes the written version of a job once the cached version is as new, or the job is no longer cached.
func (m *Reconciler) drop(job *batchv1.Job) {
	cached := slices.ContainsFunc(m.Jobs.List(), func(one *batchv1.Job) bool { return one.UID == job.UID })
	m.lock.Lock()
	defer m.lock.Unlock()
	if wrote := m.wrote[job.UID]; wrote != nil && cached && writes.Newer(wrote, job) {
		return
	}
	delete(m.wrote, job.UID)
}

// recorded records what was written to a job; uid is empty if it could not be created.
func (m *Reconciler) recorded(key string, uid types.UID, record objects.JobRecord) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.failures == nil {
		m.records, m.failures = map[types.UID]objects.JobRecord{}, map[string]int{}
	}
	m.failures[key] = 0
	if record.Verdict.Failed() {
		m.failures[key] = record.Failures + 1
	}
	if uid != "" {
		m.records[uid] = record
	}
}

func (m *Reconciler) failuresOf(key string) int {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.failures[key]
}

// removed records the removal of a job.
func (m *Reconciler) removed(uid types.UID) {
	m.lock.Lock()
	defer m.lock.Unlock()
	delete(m.wrote, uid)
	if m.deleted == nil {
		m.deleted = sets.New[types.UID]()
	}
	m.deleted.Insert(uid)
}

// queue records a repository that waits for a free place.
func (m *Reconciler) queue(key string, due time.Time) {
	m.lock.Lock()
	before, was := m.queued[key]
	if m.queued == nil {
		m.queued = map[string]time.Time{}
	}
	m.queued[key] = due
	m.lock.Unlock()
	if !was || !before.Equal(due) { // it may have been enqueued in place of another
		m.enqueueQueued()
	}
}

// release drops a repository from the queue and enqueues the next ones, which it may have blocked.
func (m *Reconciler) release(key string) {
	m.lock.Lock()
	_, was := m.queued[key]
	delete(m.queued, key)
	m.lock.Unlock()
	if was {
		m.enqueueQueued()
	}
}

// enqueueQueued enqueues the first Limit repositories of the queue. So a thousand queued ones are not all reconciled
// at each end of a job.
func (m *Reconciler) enqueueQueued() {
	m.lock.Lock()
	defer m.lock.Unlock()
	keys := slices.SortedFunc(maps.Keys(m.queued), func(a, b string) int {
		return cmp.Or(m.queued[a].Compare(m.queued[b]), cmp.Compare(a, b))
	})
	for _, key := range keys[:min(m.Limit, len(keys))] {
		m.Enqueue(key)
	}
}

// setCreateFailed records whether the job of a repository could not be created. Then the other repositories may
// start.
func (m *Reconciler) setCreateFailed(key string, stuck bool) (changed bool) {
	m.lock.Lock()
	changed = m.createFailed[key] != stuck
	if m.createFailed == nil {
		m.createFailed = map[string]bool{}
	}
	if stuck {
		m.createFailed[key] = true
	} else {
		delete(m.createFailed, key)
	}
	m.lock.Unlock()
	if changed {
		m.enqueueQueued()
	}
	return changed
}

func (m *Reconciler) isCreateFailed(key string) bool {
	m.lock.Lock()
	defer m.lock.Unlock()
	return m.createFailed[key]
}
