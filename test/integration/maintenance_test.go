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
)

// TestMaintenanceWaitsForWhatTheClusterLetsInOnKubernetes has Kubernetes keep the pods of jobs out, as the first run of each repository
// says in the history. The next one succeeds.
func TestMaintenanceWaitsForWhatTheClusterLetsInOnKubernetes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config string
		keep   func(*env)
		lift   func(*env)
		says   string
	}{
		"a quota": {keep: func(s *env) { s.quota("none") }, lift: (*env).lift, says: "exceeded quota: none"},
		"a limit of containers": {
			config: `"podResources":{"memoryLimit":"1Gi"}`,
			keep:   func(s *env) { limits(corev1.LimitTypeContainer, corev1.ResourceMemory)(s) },
			lift: func(s *env) {
				require.NoError(s, s.Kube.CoreV1().LimitRanges(s.Namespace).Delete(s.soon(), "small", metav1.DeleteOptions{}))
			},
			says: "maximum memory usage per Container is 1Ki",
		},
		"Pod Security": {
			keep: func(s *env) { secures("restricted")(s) }, lift: func(s *env) { s.secure("privileged") },
			says: `violates PodSecurity "restricted:latest"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, time.Millisecond)
			s.configureJobs(test.config)
			test.keep(s)
			name := s.repository()
			r := s.start(maintains, func(options *agent.Options) { options.Maintenance.MinBackoff = time.Second })
			first := s.maintained(name, ran(1)).Status.RecentMaintenance[0]
			require.Equal(t, velerov1.BackupRepositoryMaintenanceFailed, first.Result)
			require.Contains(t, first.Message, test.says)
			s.says("MaintenanceFailed", test.says)
			test.lift(s)
			after := s.maintained(name, succeeded)
			require.Empty(t, after.Status.Message)
			s.says("MaintenanceSucceeded", "succeeded")
			require.Equal(t, 1, r.metric("velero_repo_maintenance_success_total", "repository_name", name))
			require.NotZero(t, r.metric("velero_repo_maintenance_failure_total", "repository_name", name))
		})
	}
}

// succeeded reports whether the last run of a repository did.
func succeeded(r *velerov1.BackupRepository) bool {
	runs := r.Status.RecentMaintenance
	return len(runs) > 0 && runs[len(runs)-1].Result == velerov1.BackupRepositoryMaintenanceSucceeded
}

// lift takes the quota away.
func (e *env) lift() {
	require.NoError(e, e.Kube.CoreV1().ResourceQuotas(e.Namespace).Delete(e.soon(), "none", metav1.DeleteOptions{}))
}

// TestAJobWithoutAPodIsMadeAgainWithoutItsClass is W39: Velero's server would wait for such a job for ever.
func TestAJobWithoutAPodIsMadeAgainWithoutItsClassOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	name := s.repository()
	s.serverJob(name, "gone-"+s.Namespace, s.node.Name())
	s.configureJobs("")
	r := s.start(maintains)
	s.maintained(name, ran(1))
	after := s.maintained(name, ran(2))
	runs := after.Status.RecentMaintenance
	require.Equal(t, velerov1.BackupRepositoryMaintenanceFailed, runs[0].Result)
	require.Contains(t, runs[0].Message, "PriorityClass of its job does not exist: gone-"+s.Namespace)
	require.Nil(t, runs[0].CompleteTimestamp)
	require.Equal(t, velerov1.BackupRepositoryMaintenanceSucceeded, runs[1].Result)
	require.Len(t, s.jobs(), 1, "the job without a pod is gone")
	require.Equal(t, 1, r.metric("velero_repo_maintenance_failure_total", "repository_name", name))
}

func TestTheBlockerOfAJobIsReportedOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.refusal = true
	s.configureJobs(`"priorityClassName":"nowhere"`)
	s.limit("none", "count/jobs.batch")
	name := s.repository()
	r := s.start(maintains)
	s.says("MaintenanceSkipped", "exceeded quota: none")
	require.Zero(t, r.metric("lateen_priority_class_fallbacks_total", "consumer", "maintenance-job"), "no job is without its class")
	s.lift()
	s.maintained(name, ran(1))
	s.says("MaintenanceSucceeded", "succeeded")
	require.Equal(t, 1, r.metric("lateen_priority_class_fallbacks_total", "consumer", "maintenance-job"))
}

func TestAWebhookThatRefusesJobsOnlyDelaysMaintenanceOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.refusal = true
	s.configureJobs("")
	w := s.webhook(denies).ofJobs()
	w.validates("batch", "jobs")
	name := s.repository()
	s.start(maintains)
	s.says("MaintenanceSkipped", "not today")
	require.Empty(t, s.jobs())
	w.answers(allows)
	s.maintained(name, ran(1))
	s.says("MaintenanceSucceeded", "succeeded")
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
