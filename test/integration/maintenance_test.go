package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// Kubernetes keeps the pods of jobs out, as the first run of each repository says in the history. The next one succeeds.
func TestMaintenanceWaitsForWhatTheClusterLetsInOnKubernetes(t *testing.T) {
	const refused = "exceeded quota: none"
	s := newEnv(t, time.Millisecond)
	s.configureJobs("")
	lift := quota(s)
	name := s.repository()
	r := s.start(maintains, func(options *agent.Options) { options.Maintenance.MinBackoff = time.Second })
	first := s.maintained(name, ran(1)).Status.RecentMaintenance[0]
	require.Equal(t, velerov1.BackupRepositoryMaintenanceFailed, first.Result)
	require.Contains(t, first.Message, refused)
	s.says("MaintenanceFailed", refused)
	lift()
	after := s.maintained(name, succeeded)
	require.Empty(t, after.Status.Message)
	s.says("MaintenanceSucceeded", "succeeded")
	require.Equal(t, 1, r.metric("velero_repo_maintenance_success_total", "repository_name", name))
	require.NotZero(t, r.metric("velero_repo_maintenance_failure_total", "repository_name", name))
}

// succeeded reports whether the last run of a repository did.
func succeeded(r *velerov1.BackupRepository) bool {
	runs := r.Status.RecentMaintenance
	return len(runs) > 0 && runs[len(runs)-1].Result == velerov1.BackupRepositoryMaintenanceSucceeded
}

func TestTheBlockerOfAJobIsReportedOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.configureJobs(`"priorityClassName":"nowhere"`)
	lift := s.limit("count/jobs.batch")
	name := s.repository()
	r := s.start(maintains)
	s.says("MaintenanceSkipped", "exceeded quota: none")
	require.Zero(t, r.metric("lateen_priority_class_fallbacks_total", "consumer", "maintenance-job"), "no job is without its class")
	lift()
	s.maintained(name, ran(1))
	s.says("MaintenanceSucceeded", "succeeded")
	require.Equal(t, 1, r.metric("lateen_priority_class_fallbacks_total", "consumer", "maintenance-job"))
}

// A webhook that takes the class away changes which pods the job gives way to, not what it does. The missing class is reported.
func TestAWebhookThatChangesJobsDoesNotDisturbMaintenanceOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.configureJobs(`"priorityClassName":"` + s.class() + `"`)
	s.webhook(patches(
		operation("remove", "/spec/template/spec/priorityClassName", nil),
		operation("add", "/metadata/labels/team", "storage"),
	)).ofJobs().mutates("batch", "jobs")
	name := s.repository()
	r := s.start(maintains)
	maintained := s.maintained(name, ran(1))
	require.Equal(t, velerov1.BackupRepositoryMaintenanceSucceeded, maintained.Status.RecentMaintenance[0].Result)
	job := s.job(func(*batchv1.Job) bool { return true })
	require.Equal(t, "storage", job.Labels["team"])
	require.Empty(t, job.Spec.Template.Spec.PriorityClassName)
	s.says("PriorityClassNotInForce", "(rejected)")
	require.Equal(t, 1, r.metric("lateen_priority_class_fallbacks_total", "consumer", "maintenance-job", "reason", "rejected"))
}

// maintenanceConfigMap is the name of the maintenance ConfigMap of every environment.
const maintenanceConfigMap = "repo-maintenance-config"

// maintains is an agent that maintains repositories, as often as the test has them say, and without waits of minutes.
func maintains(options *agent.Options) {
	options.Flags.MaintenanceConcurrency, options.Flags.MaintenanceTimeout = 3, time.Hour
	options.Flags.MaintenanceConfigMap = maintenanceConfigMap
	options.Maintenance = maintenance.DefaultPolicy()
	options.Maintenance.PodWait, options.Maintenance.DeleteDelay = 10*time.Second, time.Second
}

// configureJobs writes the maintenance ConfigMap, for all repositories. Jobs run on the node of this environment and succeed at once.
func (e *env) configureJobs(more string) {
	here := `{"loadAffinity":[{"nodeSelector":{"matchLabels":{"kubernetes.io/hostname":"` + e.node.Name() + `"}}}]`
	if more != "" {
		here += "," + more
	}
	require.NoError(e, e.ConfigMap(e.soon(), maintenanceConfigMap, map[string]string{"global": here + "}"}))
	e.node.Faults.Add(node.Fault{Ends: &node.Result{}, Match: func(pod *corev1.Pod) bool {
		return pod.Namespace == e.Namespace && pod.Labels[api.LabelRepository] != ""
	}})
}

// ofRepositories selects maintenance jobs and their pods.
var ofRepositories = metav1.ListOptions{LabelSelector: api.LabelRepository}

// repository makes one that has been due for an hour, and returns its name.
func (e *env) repository() string {
	repository := &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{Name: "app-default-kopia-x7k2p", Namespace: e.Namespace}}
	repository.Spec = velerov1.BackupRepositorySpec{
		VolumeNamespace: "app", BackupStorageLocation: "default", RepositoryType: "kopia",
		MaintenanceFrequency: metav1.Duration{Duration: time.Hour},
	}
	repository.Status.Phase = velerov1.BackupRepositoryPhaseReady
	repository.Status.LastMaintenanceTime = new(metav1.NewTime(time.Now().Add(-2 * time.Hour)))
	_, err := e.Repositories().Create(e.soon(), repository, metav1.CreateOptions{})
	require.NoError(e, err)
	return repository.Name
}

// maintained waits until a repository is as wanted.
func (e *env) maintained(name string, wanted func(*velerov1.BackupRepository) bool) *velerov1.BackupRepository {
	e.Helper()
	return waitFor(e, e.Repositories(), testenv.Named(name), wanted)
}

// ran reports whether a repository has so many runs in its history.
func ran(runs int) func(*velerov1.BackupRepository) bool {
	return func(r *velerov1.BackupRepository) bool { return len(r.Status.RecentMaintenance) >= runs }
}

// job waits for a maintenance job.
func (e *env) job(wanted func(*batchv1.Job) bool) *batchv1.Job {
	return waitFor(e, e.Kube.BatchV1().Jobs(e.Namespace), ofRepositories, wanted)
}
