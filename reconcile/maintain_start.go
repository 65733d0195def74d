package reconcile

import (
	"context"
	"errors"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/lateen-project/lateen/exposer"
	"github.com/lateen-project/lateen/exposer/build"
	"github.com/lateen-project/lateen/reconcile/maintenance"
)

// Reasons of the Kubernetes Events on backup repositories.
const (
	EventMaintained    = "MaintenanceSucceeded"
	EventNotMaintained = "MaintenanceFailed"
	EventHindered      = "MaintenanceSkipped"
)

// start makes the job that is due, if it is the turn of its repository.
func (m *Maintainer) start(ctx context.Context, key string, object *velerov1.BackupRepository, step maintenance.Step) error {
	mine := maintenance.Waiting{Name: key, Due: step.Due}
	if !maintenance.Turn(mine, m.waiting(key), m.running(), m.Limit) {
		m.hold(key)
		return nil
	}
	m.release(key)
	made, err := m.make(ctx, object, step)
	hopeless := (*exposer.HopelessError)(nil)
	switch {
	case errors.Is(err, exposer.ErrAlreadyMaintained):
		m.setStuck(key, false)
		return nil // its event is on its way
	case errors.As(err, &hopeless):
		run := maintenance.Run{Started: m.Clock.Now(), Failed: true, Message: hopeless.Error()}
		written, err := m.write(ctx, key, object, []maintenance.Run{run})
		if written {
			m.ended(ctx, object, run, 0)
		}
		return err
	case err != nil:
		m.setStuck(key, true)
		return err
	}
	m.setStuck(key, false)
	m.add(made)
	klog.FromContext(ctx).Info("Started maintenance", "repository", key, "job", made.Name, "due", step.Due,
		"priorityClass", made.Spec.Template.Spec.PriorityClassName, "memoryFactor", step.Factor)
	return nil
}

func (m *Maintainer) make(ctx context.Context, object *velerov1.BackupRepository, step maintenance.Step) (*batchv1.Job, error) {
	plan, err := m.Plan(ctx, object)
	if err != nil {
		return nil, err
	}
	return m.Exec.Start(ctx, build.Job(build.Maintenance{
		Name: object.Name, Namespace: object.Namespace, UID: object.UID,
		VolumeNamespace: object.Spec.VolumeNamespace, Location: object.Spec.BackupStorageLocation, Type: object.Spec.RepositoryType,
		Due: step.Due, Factor: step.Factor, Timeout: m.Timeout,
	}, plan.Template, plan.Settings))
}

// waiting are the other repositories that are due and can be served.
func (m *Maintainer) waiting(but string) []maintenance.Waiting {
	var all []maintenance.Waiting
	for _, object := range m.Repositories.List() {
		key := object.Namespace + "/" + object.Name
		if key == but || m.isStuck(key) {
			continue
		}
		if step := m.next(m.memory.newest(key, object)); step.Action == maintenance.Start {
			all = append(all, maintenance.Waiting{Name: key, Due: step.Due})
		}
	}
	return all
}

// all are the jobs in the cache, and those that we made and that it does not have yet.
func (m *Maintainer) all() []*batchv1.Job {
	jobs := slices.Clone(m.Jobs.List())
	m.lock.Lock()
	defer m.lock.Unlock()
	for _, job := range jobs {
		delete(m.made, job.UID)
	}
	for _, job := range m.made {
		jobs = append(jobs, job)
	}
	return jobs
}

func (m *Maintainer) jobsOf(object *velerov1.BackupRepository) []build.JobSeen {
	label := build.RepositoryLabel(object.Name)
	var jobs []build.JobSeen
	for _, job := range m.all() {
		if job.Namespace == object.Namespace && job.Labels[build.LabelRepository] == label {
			jobs = append(jobs, build.ReadJob(job))
		}
	}
	return jobs
}

func (m *Maintainer) running() int {
	n := 0
	for _, job := range m.all() {
		if build.ReadJob(job).Outcome == build.JobUnfinished {
			n++
		}
	}
	return n
}

// Job is to be told of every job that is added, changed or deleted: it wakes its repository, and those that wait
// for room.
func (m *Maintainer) Job(job *batchv1.Job) {
	m.drop(job.UID)
	for _, object := range m.Repositories.List() {
		if build.RepositoryLabel(object.Name) == job.Labels[build.LabelRepository] {
			m.Wake(object.Namespace + "/" + object.Name)
		}
	}
	m.wakeHeld()
}

// Location is to be told of every BackupStorageLocation that is added, changed or deleted.
func (m *Maintainer) Location(location *velerov1.BackupStorageLocation) {
	for _, object := range m.Repositories.List() {
		if object.Spec.BackupStorageLocation == location.Name {
			m.Wake(object.Namespace + "/" + object.Name)
		}
	}
}

// ended counts a run and tells of it.
func (m *Maintainer) ended(ctx context.Context, object *velerov1.BackupRepository, run maintenance.Run, took time.Duration) {
	m.Metrics.Ended(object.Name, !run.Failed, took)
	logger := klog.FromContext(ctx)
	if run.Failed {
		logger.Error(nil, "Maintenance failed", "repository", klog.KObj(object), "took", took, "message", run.Message)
		m.Recorder.Eventf(referenceTo(object), corev1.EventTypeWarning, EventNotMaintained, "maintenance failed after %s: %s", took.Round(time.Second), run.Message)
		return
	}
	logger.Info("Maintenance succeeded", "repository", klog.KObj(object), "took", took)
	m.Recorder.Eventf(referenceTo(object), corev1.EventTypeNormal, EventMaintained, "maintenance succeeded in %s", took.Round(time.Second))
}

// referenceTo is for Events: objects of a cache do not say of what kind they are.
func referenceTo(object *velerov1.BackupRepository) *corev1.ObjectReference {
	return &corev1.ObjectReference{
		APIVersion: velerov1.SchemeGroupVersion.String(), Kind: "BackupRepository",
		Namespace: object.Namespace, Name: object.Name, UID: object.UID,
	}
}
