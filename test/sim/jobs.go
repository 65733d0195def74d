package sim

import (
	"fmt"
	"slices"
	"time"

	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/sim/apiserver"
	"github.com/lateen-project/lateen/test/sim/controllers"
)

// furnishRepositories creates the repositories, which are due at once.
func (s *Simulation) furnishRepositories() {
	for number := range s.plan.Repositories {
		namespace := fmt.Sprintf("app-%d", number)
		s.Create("backuprepositories", veleroNamespace, &velerov1.BackupRepository{
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

// unmaintained describes the repositories without a successful maintenance, and the Jobs that have not ended.
func (s *Simulation) unmaintained() string {
	for _, object := range s.API.List("backuprepositories") {
		if apiserver.As[velerov1.BackupRepository](object).Status.LastMaintenanceTime == nil {
			return "repository " + object.Key() + " was never maintained"
		}
	}
	for _, object := range s.API.List("jobs") {
		of := apiserver.As[batchv1.Job](object)
		if !controllers.Finished(of) {
			return "job " + object.Key() + " has not ended"
		}
		if of.Status.Succeeded+of.Status.Failed == 0 {
			return "job " + object.Key() + " has ended, which Velero's server cannot observe"
		}
		if s.API.Get("backuprepositories", veleroNamespace, object.GetLabels()[api.LabelRepository]) == nil {
			return "job " + object.Key() + " has no repository"
		}
	}
	return ""
}

// checkJobs checks that a repository has one unfinished Job at most, and that no more Jobs work in the cluster than may.
func (s *Simulation) checkJobs() error {
	unfinished := map[string]int{}
	total := 0
	for _, object := range s.API.List("jobs") {
		if err := s.checkRun(object); err != nil {
			return err
		}
		of := apiserver.As[batchv1.Job](object)
		if controllers.Finished(of) || of.DeletionTimestamp != nil || of.Annotations[api.AnnotationReleased] != "" {
			continue
		}
		if err := checkTerminating(of, s.hindered, s.API.Now()); err != nil {
			return err
		}
		name := of.Labels[api.LabelRepository]
		if unfinished[name]++; unfinished[name] > 1 {
			return fmt.Errorf("repository %s has %d unfinished jobs", name, unfinished[name])
		}
		if pod := s.PodOf(of.UID); pod == nil && of.Status.Active > 0 || pod != nil && controllers.Terminal(pod) {
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
	for _, object := range s.API.List("backuprepositories") {
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
