package sim

import (
	"fmt"
	"maps"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/sim/apiserver"
)

// furnishRepositories creates the repositories, which are due at once.
func (s *Simulation) furnishRepositories() {
	for number := range s.plan.Repositories {
		namespace := fmt.Sprintf("app-%d", number)
		s.create("backuprepositories", veleroNamespace, &velerov1.BackupRepository{
			ObjectMeta: metav1.ObjectMeta{Name: namespace + "-default-kopia"},
			Spec: velerov1.BackupRepositorySpec{
				VolumeNamespace: namespace, BackupStorageLocation: "default", RepositoryType: "kopia", MaintenanceFrequency: metav1.Duration{Duration: time.Hour},
			},
			Status: velerov1.BackupRepositoryStatus{Phase: velerov1.BackupRepositoryPhaseReady},
		})
	}
}

// calm reports whether an agent runs that nothing hinders.
func (s *Simulation) calm() bool {
	return slices.ContainsFunc(s.processes, func(p *process) bool { return p.alive() && !p.cut })
}

// working plays the Job controller.
func (s *Simulation) working() (all []choice) {
	for _, object := range s.api.List("jobs") {
		if act, do := s.control(object); do != nil {
			all = append(all, choice{"job controller: " + act + " job " + object.Key(), often, do})
		}
	}
	return all
}

// control returns the next act of the Job controller for a Job without retries, or nil.
func (s *Simulation) control(object *apiserver.Object) (string, func()) {
	of := apiserver.As[batchv1.Job](object)
	if finished(of) || of.DeletionTimestamp != nil {
		return "", nil
	}
	pod := s.podOf(of.UID)
	gone := pod == nil || terminal(pod)
	failing := slices.ContainsFunc(of.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobFailureTarget })
	switch {
	case failing && !gone && pod.DeletionTimestamp == nil:
		return "stops the pod of", func() { s.mustDelete("pods", s.api.Find(pod.UID)) }
	case failing && !gone:
		return "", nil
	case failing:
		return "fails", func() { s.endJob(object, batchv1.JobFailed) }
	case of.Status.StartTime == nil:
		return "starts", func() { s.patch("jobs", object, map[string]any{"status": map[string]any{"startTime": s.now()}}) }
	case of.Status.Active == 0 && pod == nil && s.expired(of):
		return "stops", func() { s.endJob(object, batchv1.JobFailureTarget) }
	case of.Status.Active == 0 && pod == nil && s.faults.noPods:
		return "", nil
	case of.Status.Active == 0 && pod == nil:
		return "creates the pod of", func() { s.createJobPod(object, of) }
	case pod == nil, pod.DeletionTimestamp != nil, pod.Status.Phase == corev1.PodFailed, s.expired(of):
		return "stops", func() { s.endJob(object, batchv1.JobFailureTarget) }
	case pod.Status.Phase == corev1.PodSucceeded:
		return "completes", func() { s.endJob(object, batchv1.JobComplete) }
	case pod.Status.Phase == corev1.PodRunning && ptr.Deref(of.Status.Ready, 0) == 0:
		return "counts the pod of", func() { s.patch("jobs", object, map[string]any{"status": map[string]any{"ready": 1}}) }
	}
	return "", nil
}

func finished(of *batchv1.Job) bool {
	return slices.ContainsFunc(of.Status.Conditions, func(c batchv1.JobCondition) bool {
		return c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed
	})
}

func (s *Simulation) expired(of *batchv1.Job) bool {
	return of.Status.StartTime != nil && of.Spec.ActiveDeadlineSeconds != nil &&
		s.api.Now().Sub(of.Status.StartTime.Time) > time.Duration(*of.Spec.ActiveDeadlineSeconds)*time.Second
}

// podOf returns the pod of a Job, or nil.
func (s *Simulation) podOf(job types.UID) *corev1.Pod {
	for _, object := range s.api.List("pods") {
		if object.GetLabels()[batchv1.ControllerUidLabel] == string(job) {
			return apiserver.As[corev1.Pod](object)
		}
	}
	return nil
}

func (s *Simulation) createJobPod(object *apiserver.Object, of *batchv1.Job) {
	labels := map[string]string{batchv1.ControllerUidLabel: string(of.UID), batchv1.JobNameLabel: of.Name}
	maps.Copy(labels, of.Spec.Template.Labels)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		GenerateName: of.Name + "-", Labels: labels,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: of.Name, UID: of.UID, Controller: new(true)}},
	}, Spec: of.Spec.Template.Spec}
	s.create("pods", of.Namespace, pod)
	s.patch("jobs", object, map[string]any{"status": map[string]any{"active": 1, "ready": 0}})
}

// endJob adds the condition of an end to a Job, and to a final one its counts.
func (s *Simulation) endJob(object *apiserver.Object, condition batchv1.JobConditionType) {
	status := apiserver.As[batchv1.Job](object).Status.DeepCopy()
	status.Conditions = append(status.Conditions, batchv1.JobCondition{Type: condition, Status: corev1.ConditionTrue, Reason: "Simulated", LastTransitionTime: s.now()})
	switch condition {
	case batchv1.JobComplete:
		status.Succeeded, status.CompletionTime = 1, new(s.now())
	case batchv1.JobFailed:
		status.Failed += status.Active // without a pod, the condition alone says so
	default:
	}
	fields := map[string]any{"conditions": status.Conditions, "succeeded": status.Succeeded, "failed": status.Failed, "completionTime": status.CompletionTime}
	if condition != batchv1.JobFailureTarget {
		fields["active"], fields["ready"] = nil, nil
	}
	s.patch("jobs", object, map[string]any{"status": fields})
}

// unmaintained describes the repositories without a successful maintenance, and the Jobs that have not ended.
func (s *Simulation) unmaintained() string {
	for _, object := range s.api.List("backuprepositories") {
		if apiserver.As[velerov1.BackupRepository](object).Status.LastMaintenanceTime == nil {
			return "repository " + object.Key() + " was never maintained"
		}
	}
	for _, object := range s.api.List("jobs") {
		of := apiserver.As[batchv1.Job](object)
		if !finished(of) {
			return "job " + object.Key() + " has not ended"
		}
		if of.Status.Succeeded+of.Status.Failed == 0 {
			return "job " + object.Key() + " has ended, which Velero's server cannot observe"
		}
		if s.api.Get("backuprepositories", veleroNamespace, object.GetLabels()[api.LabelRepository]) == nil {
			return "job " + object.Key() + " has no repository"
		}
	}
	return ""
}

// checkJobs checks that a repository has one unfinished Job at most, and that no more Jobs work in the cluster than may.
func (s *Simulation) checkJobs() error {
	unfinished := map[string]int{}
	total := 0
	for _, object := range s.api.List("jobs") {
		if err := s.checkRun(object); err != nil {
			return err
		}
		of := apiserver.As[batchv1.Job](object)
		if finished(of) || of.DeletionTimestamp != nil || of.Annotations[api.AnnotationReleased] != "" {
			continue
		}
		if err := checkTerminating(of, s.hindered, s.api.Now()); err != nil {
			return err
		}
		name := of.Labels[api.LabelRepository]
		if unfinished[name]++; unfinished[name] > 1 {
			return fmt.Errorf("repository %s has %d unfinished jobs", name, unfinished[name])
		}
		if pod := s.podOf(of.UID); pod == nil && of.Status.Active > 0 || pod != nil && terminal(pod) {
			continue
		}
		if total++; total > s.plan.Maintenance {
			return fmt.Errorf("%d jobs work, and %d may", total, s.plan.Maintenance)
		}
	}
	return nil
}

// jobDeleted checks a job that is about to be deleted. The only worker of Velero's server waits for the end of each job,
// and never learns that one without an end is gone.
func (p *promises) jobDeleted(by string, object *apiserver.Object) {
	of := apiserver.As[batchv1.Job](object)
	if of.Status.Succeeded+of.Status.Failed == 0 {
		p.fail("%s deletes job %s, for which Velero's server waits", by, object.Key())
	}
}

// checkTerminating checks that no job that Kubernetes is ending holds its repository for long, while an agent runs.
func checkTerminating(of *batchv1.Job, hindered, now time.Time) error {
	const most = 12 * time.Minute
	for _, condition := range of.Status.Conditions {
		if condition.Type == batchv1.JobFailureTarget && min(now.Sub(condition.LastTransitionTime.Time), now.Sub(hindered)) > most {
			return fmt.Errorf("job %s has been ending for more than %s", of.Name, most)
		}
	}
	return nil
}

// checkHistory checks that the history of a repository has each run once.
func (s *Simulation) checkHistory() error {
	for _, object := range s.api.List("backuprepositories") {
		seen := map[string]bool{}
		for _, run := range apiserver.As[velerov1.BackupRepository](object).Status.RecentMaintenance {
			start := run.StartTimestamp.UTC().Format(time.RFC3339)
			if seen[start] {
				return fmt.Errorf("repository %s has the run of %s twice", object.Key(), start)
			}
			seen[start] = true
		}
	}
	return nil
}
