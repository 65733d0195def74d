package repository

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/reconcile/writes"
)

// Reasons of the Kubernetes Events on backup repositories.
const (
	EventMaintained    = "MaintenanceSucceeded"
	EventNotMaintained = "MaintenanceFailed"
	EventSkipped       = "MaintenanceSkipped"
)

// start creates the due job of a repository if the limit and the older repositories allow it. It returns the delay
// until the job must have a pod: a job that is deleted before the watch shows it has no event.
func (m *Reconciler) start(ctx context.Context, key string, object *velerov1.BackupRepository, step maintenance.Step, jobs jobsByLabel) (time.Duration, error) {
	own := maintenance.Waiting{Name: key, Due: step.Due}
	if !maintenance.MayStart(own, m.waiting(key, jobs), m.running(jobs), m.Limit) {
		m.queue(key, step.Due)
		return 0, nil
	}
	m.release(key)
	created, err := m.createJob(ctx, object, step)
	terminal := (*exposer.TerminalError)(nil)
	switch {
	case errors.Is(err, exposer.ErrAlreadyMaintained):
		m.setCreateFailed(key, false)
		return 0, nil // its event is on the way
	case errors.As(err, &terminal):
		never := objects.JobStatus{Outcome: objects.JobFailed, Created: m.Clock.Now(), Finished: m.Clock.Now()}
		record := objects.JobRecord{Verdict: objects.VerdictFailed, Failures: step.Failures, Factor: step.Factor}
		return 0, m.recordRuns(ctx, key, object, never, record, terminal.Error())
	case err != nil:
		if !errors.Is(err, errUnanswered) && m.setCreateFailed(key, true) {
			m.Recorder.Eventf(referenceTo(object), corev1.EventTypeWarning, EventSkipped, "Maintenance job cannot be created, retrying: %v", err)
		}
		return 0, err
	}
	m.setCreateFailed(key, false)
	m.add(created)
	klog.FromContext(ctx).Info("Started maintenance", "repository", key, "job", created.Name, "due", step.Due,
		"priorityClass", created.Spec.Template.Spec.PriorityClassName, "memoryFactor", step.Factor)
	return m.Policy.PodWait, nil
}

// errUnanswered says that a job may exist in spite of an error. It needs its place then.
var errUnanswered = errors.New("the API server did not answer")

func (m *Reconciler) createJob(ctx context.Context, object *velerov1.BackupRepository, step maintenance.Step) (*batchv1.Job, error) {
	plan, err := m.Plan(ctx, object)
	if err != nil {
		return nil, err
	}
	created, err := m.JobClient.Start(ctx, objects.Job(objects.Maintenance{
		Name: object.Name, Namespace: object.Namespace, UID: object.UID,
		VolumeNamespace: object.Spec.VolumeNamespace, Location: object.Spec.BackupStorageLocation, Type: object.Spec.RepositoryType,
		Due: step.Due, Failures: step.Failures, Factor: step.Factor, Timeout: m.Policy.Timeout,
	}, plan.Template, plan.Settings))
	answer := apierrors.APIStatus(nil) // of a webhook it may lack a reason
	switch {
	case err == nil:
		plan.Created(created)
	case errors.Is(err, exposer.ErrAlreadyMaintained):
	case !errors.As(err, &answer), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err):
		return nil, fmt.Errorf("%w: %w", errUnanswered, err)
	}
	return created, err
}

// waiting returns the other repositories whose job is due and can be created.
func (m *Reconciler) waiting(but string, jobs jobsByLabel) []maintenance.Waiting {
	var all []maintenance.Waiting
	for _, object := range m.Repositories.List() {
		key := object.Namespace + "/" + object.Name
		if key == but || m.isCreateFailed(key) {
			continue
		}
		if step := m.next(m.overlay.Newest(key, object), jobs); step.Action == maintenance.Start {
			all = append(all, maintenance.Waiting{Name: key, Due: step.Due})
		}
	}
	return all
}

// jobsByLabel holds maintenance jobs by the value of api.LabelRepository.
type jobsByLabel map[string][]objects.JobStatus

// stageSeen records when a job was first observed in its stage, by the clock of this process. The API server and
// Kubernetes' controllers write timestamps by other clocks.
type stageSeen struct {
	stage objects.JobStage
	since time.Time
}

// jobs returns the cached jobs, or this process's own write of a job while the cache is older. A job that was removed
// but is still cached counts as deleting.
func (m *Reconciler) jobs() jobsByLabel {
	all := slices.Clone(m.Jobs.List())
	m.lock.Lock()
	defer m.lock.Unlock()
	still := sets.New[types.UID]()
	cached := sets.New[types.UID]()
	for i, job := range all {
		cached.Insert(job.UID)
		if wrote := m.wrote[job.UID]; wrote != nil && writes.Newer(wrote, job) {
			all[i] = wrote
		} else {
			delete(m.wrote, job.UID)
		}
		if m.deleted.Has(job.UID) {
			still.Insert(job.UID)
		}
	}
	m.deleted = still
	maps.DeleteFunc(m.records, func(uid types.UID, _ objects.JobRecord) bool { return !cached.Has(uid) && m.wrote[uid] == nil })
	maps.DeleteFunc(m.stages, func(uid types.UID, _ stageSeen) bool { return !cached.Has(uid) && m.wrote[uid] == nil })
	if m.stages == nil {
		m.stages = map[types.UID]stageSeen{}
	}
	for uid, job := range m.wrote {
		if !cached.Has(uid) {
			all = append(all, job)
		}
	}
	jobs := jobsByLabel{}
	for _, job := range all {
		observed := objects.ReadJob(job)
		observed.Deleting = observed.Deleting || still.Has(observed.UID)
		if record, ok := m.records[observed.UID]; ok {
			observed.JobRecord = record
		}
		if m.stages[observed.UID].stage != observed.Stage() || m.stages[observed.UID].since.IsZero() {
			m.stages[observed.UID] = stageSeen{observed.Stage(), m.Clock.Now()}
		}
		observed.Since = m.stages[observed.UID].since
		label := job.Labels[api.LabelRepository]
		jobs[label] = append(jobs[label], observed)
	}
	return jobs
}

// running counts the unfinished jobs. A job without a pod counts only while a step ends it: if it has a repository, whose
// next job waits for its end, or if its repository was deleted, after which it is released.
func (m *Reconciler) running(jobs jobsByLabel) int {
	maintained, exists := map[string]bool{}, map[string]bool{}
	for _, object := range m.Repositories.List() {
		observed, label := maintenance.From(object), objects.RepositoryLabel(object.Name)
		maintained[label], exists[label] = observed.Kopia && !observed.Deleting, true
	}
	n := 0
	for label, own := range jobs {
		for _, job := range own {
			if job.Outcome == objects.JobUnfinished && (job.HasPod || maintained[label] || !exists[label]) {
				n++
			}
		}
	}
	return n
}

// Job handles an add, update or delete event of a job. It enqueues the repository of the job and the repositories
// that wait for a free place. Without a repository, the label value is the key, and the job itself is reconciled.
func (m *Reconciler) Job(job *batchv1.Job) {
	m.drop(job)
	key := job.Namespace + "/" + job.Labels[api.LabelRepository]
	for _, object := range m.Repositories.List() {
		if objects.RepositoryLabel(object.Name) == job.Labels[api.LabelRepository] {
			key = object.Namespace + "/" + object.Name
		}
	}
	m.Enqueue(key)
	m.enqueueQueued()
}

// splitKey splits the key of an object into namespace and name.
func splitKey(key string) (namespace, name string) {
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}

// Location handles an add, update or delete event of a BackupStorageLocation.
func (m *Reconciler) Location(location *velerov1.BackupStorageLocation) {
	for _, object := range m.Repositories.List() {
		if object.Spec.BackupStorageLocation == location.Name {
			m.Enqueue(object.Namespace + "/" + object.Name)
		}
	}
}

// ended reports a run to metrics, log and Events.
func (m *Reconciler) ended(ctx context.Context, object *velerov1.BackupRepository, why string, succeeded bool, took time.Duration) {
	m.Metrics.Ended(object.Name, succeeded, took)
	logger := klog.FromContext(ctx)
	if !succeeded {
		logger.Error(nil, "Maintenance failed", "repository", klog.KObj(object), "took", took, "message", why)
		m.Recorder.Eventf(referenceTo(object), corev1.EventTypeWarning, EventNotMaintained, "Maintenance failed after %s: %s", took.Round(time.Second), why)
		return
	}
	logger.Info("Maintenance succeeded", "repository", klog.KObj(object), "took", took)
	m.Recorder.Eventf(referenceTo(object), corev1.EventTypeNormal, EventMaintained, "Maintenance succeeded in %s", took.Round(time.Second))
}

// referenceTo returns the object reference for Events. Cached objects do not have their kind set.
func referenceTo(object *velerov1.BackupRepository) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "BackupRepository",
		Namespace: object.Namespace, Name: object.Name, UID: object.UID,
	}
}
