package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/test/node"
)

func TestWhateverTheClusterDoesToAJobIsWrittenDownOnKubernetes(t *testing.T) {
	runJobFaults(t, map[string]jobFault{
		"its node is drained": {
			before: func(*env) {},
			happens: func(s *env) {
				s.podOfJob()
				s.jobsEnd(node.Result{}, 0)
				s.drain(s.node, s.Namespace)
				s.cordon(s.node, false)
			},
			runs: []string{" ", ""}, jobs: 2, // why, unless its pod is gone before anybody has read that
		},
		"a limit of containers lets no pod in, until it is lifted": {
			before: func(s *env) {
				limits(corev1.LimitTypeContainer, corev1.ResourceMemory)(s)
				s.jobsEnd(node.Result{}, 0)
			},
			config: func(s *env) map[string]string {
				return map[string]string{"global": s.pinned(`"podResources":{"memoryLimit":"1Gi"}`)}
			},
			after: func(s *env) {
				require.NoError(s, s.Kube.CoreV1().LimitRanges(s.Namespace).Delete(s.soon(), "small", metav1.DeleteOptions{}))
			},
			runs: []string{"maximum memory usage per Container is 1Ki", ""}, jobs: 1,
		},
		"Pod Security lets no pod in, until it is lifted": {
			before: func(s *env) { secures("restricted")(s); s.jobsEnd(node.Result{}, 0) },
			after:  func(s *env) { s.secure("privileged") },
			runs:   []string{`violates PodSecurity "restricted:latest"`, ""}, jobs: 1,
		},
	})
}

func TestAWebhookThatRefusesJobsOnlyDelaysMaintenanceOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.refusal = true
	s.configureJobs("")
	s.jobsEnd(node.Result{}, 0)
	w := s.webhook(denies).ofJobs()
	w.validates("batch", "jobs")
	name := s.repository("app-default-kopia-x7k2p")
	s.start(maintains)
	s.says("MaintenanceSkipped", "not today")
	require.Empty(t, s.jobs())
	w.answers(allows)
	s.maintained(name, ran(1))
	s.says("MaintenanceSucceeded", "succeeded")
	s.haveLeft(1)
}

// A webhook that takes the class away changes which pods the job gives way to, not what it does. The missing class is reported.
func TestAWebhookThatChangesJobsDoesNotDisturbMaintenanceOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.configureJobs(`"priorityClassName":"` + s.class() + `"`)
	s.jobsEnd(node.Result{}, 0)
	s.webhook(patches(
		operation("remove", "/spec/template/spec/priorityClassName", nil),
		operation("add", "/metadata/labels/team", "storage"),
	)).ofJobs().mutates("batch", "jobs")
	name := s.repository("app-default-kopia-x7k2p")
	r := s.start(maintains)
	maintained := s.maintained(name, ran(1))
	require.Equal(t, velerov1.BackupRepositoryMaintenanceSucceeded, maintained.Status.RecentMaintenance[0].Result)
	job := s.job(func(*batchv1.Job) bool { return true })
	require.Equal(t, "storage", job.Labels["team"])
	require.Empty(t, job.Spec.Template.Spec.PriorityClassName)
	s.says("PriorityClassNotInForce", "(rejected)")
	require.Equal(t, 1, r.metric("lateen_priority_class_fallbacks_total", "consumer", "maintenance-job", "reason", "rejected"))
	s.haveLeft(1)
}
