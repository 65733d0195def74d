package integration

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/node"
)

func TestARepositoryThatIsDueIsMaintained(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	class := s.class()
	s.configureJobs(`"priorityClassName":"`+class+`"`, `{"keepLatestMaintenanceJobs":1,"podResources":{"memoryRequest":"64Mi"}}`)
	s.jobsEnd(node.Result{}, 0)
	name := s.repository("app-default-kopia-x7k2p")
	r := s.start(maintains)
	after := s.maintained(name, ran(1))
	run := after.Status.RecentMaintenance[0]
	require.Equal(t, velerov1.BackupRepositoryMaintenanceSucceeded, run.Result)
	require.Equal(t, run.CompleteTimestamp, after.Status.LastMaintenanceTime)
	require.Empty(t, run.Message)

	jobs := s.jobs()
	require.Len(t, jobs, 1)
	pod := jobs[0].Spec.Template.Spec
	require.Equal(t, class, pod.PriorityClassName)
	require.Equal(t, "velero", pod.ServiceAccountName)
	require.Equal(t, "64Mi", pod.Containers[0].Resources.Requests.Memory().String())
	require.Equal(t, []string{"repo-maintenance", "--repo-name=app", "--repo-type=kopia", "--backup-storage-location=default"}, pod.Containers[0].Args[:4])
	require.Equal(t, string(after.UID), jobs[0].Annotations[api.AnnotationRepositoryUID])
	require.Empty(t, jobs[0].OwnerReferences)
	s.says("MaintenanceSucceeded", "succeeded")
	require.Equal(t, 1, r.metric("velero_repo_maintenance_success_total", "repository_name", name))
	require.Zero(t, r.metric("velero_repo_maintenance_failure_total", "repository_name", name))
	require.Equal(t, 1, r.metric("velero_repo_maintenance_duration_seconds", "repository_name", name))
	require.Equal(t, 1, r.metric("lateen_priority_class_info", "consumer", "maintenance-job", "configured", class, "effective", class))
}

// TestAJobWithoutAPodIsMadeAgainWithoutItsClass is W39: Velero's server would wait for such a job for ever.
func TestAJobWithoutAPodIsMadeAgainWithoutItsClassOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	name := s.repository("app-default-kopia-x7k2p")
	s.serverJob(name, "gone-"+s.Namespace, s.node.Name())
	s.configureJobs("")
	s.jobsEnd(node.Result{}, 0)
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

func TestHowAJobFailedIsWrittenDown(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		result node.Result
		want   string
	}{
		"with what Velero's program says": {node.Result{ExitCode: 1, Message: "level=error\nRepo maintenance error: repository is locked"}, "repository is locked"},
		"with the memory that it took":    {node.Result{ExitCode: 137, Reason: "OOMKilled"}, "OOMKilled"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t, time.Millisecond)
			s.configureJobs(`"podResources":{"memoryLimit":"1Gi"}`)
			s.jobsEnd(test.result, 1)
			s.jobsEnd(node.Result{}, 0)
			repository := s.repository("app-default-kopia-x7k2p")
			s.start(maintains, func(options *agent.Options) { options.Maintenance.MinBackoff = time.Second })
			s.maintained(repository, ran(1))
			runs := s.maintained(repository, ran(2)).Status.RecentMaintenance
			require.Equal(t, velerov1.BackupRepositoryMaintenanceFailed, runs[0].Result)
			require.Contains(t, runs[0].Message, test.want)
			require.Nil(t, runs[0].CompleteTimestamp)
			require.Equal(t, velerov1.BackupRepositoryMaintenanceSucceeded, runs[1].Result)
			s.says("MaintenanceFailed", test.want)
			var limits []string
			for _, job := range s.jobs() {
				limits = append(limits, job.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().String())
			}
			want := []string{"1Gi", "1Gi"}
			if test.result.Reason != "" {
				want[1] = "1536Mi"
			}
			require.ElementsMatch(t, want, limits)
		})
	}
}

// TestAJobWhosePodNeverStartsIsGivenUp holds a place until then.
func TestAJobWhosePodNeverStartsIsGivenUpOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.configureJobs("")
	s.node.Faults.Add(node.Fault{Match: s.ofMaintenance, NeverStarts: true, Times: 1})
	s.jobsEnd(node.Result{}, 0)
	name := s.repository("app-default-kopia-x7k2p")
	s.start(maintains, func(options *agent.Options) {
		options.Maintenance.PendingWait, options.Maintenance.MinBackoff = 2*time.Second, time.Second
	})
	after := s.maintained(name, func(r *velerov1.BackupRepository) bool {
		runs := r.Status.RecentMaintenance
		return len(runs) > 1 && runs[len(runs)-1].Result == velerov1.BackupRepositoryMaintenanceSucceeded
	})
	require.Contains(t, after.Status.RecentMaintenance[0].Message, "pod did not start")
	s.says("MaintenanceFailed", "pod did not start")
}

// TestAJobOfTheServerThatNeverEndsIsEnded has one that no deadline ends.
func TestAJobOfTheServerThatNeverEndsIsEndedOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.configureJobs("")
	name := s.repository("app-default-kopia-x7k2p")
	s.serverJob(name, "", s.node.Name())
	s.podOfJob()
	s.start(maintains, func(options *agent.Options) { options.Flags.MaintenanceTimeout = 2 * time.Second })
	after := s.maintained(name, ran(1))
	require.Contains(t, after.Status.RecentMaintenance[0].Message, "exceeded --repo-maintenance-timeout")
	s.job(func(job *batchv1.Job) bool { return objects.ReadJob(job).Outcome == objects.JobFailed })
}

func TestAReadOnlyLocationHasNoMaintenance(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.configureJobs("")
	s.jobsEnd(node.Result{}, 0)
	s.accessMode(velerov1.BackupStorageLocationAccessModeReadOnly)
	name := s.repository("app-default-kopia-x7k2p")
	other := s.repository("app-elsewhere-kopia-b3c4d", func(r *velerov1.BackupRepository) { r.Spec.BackupStorageLocation = "elsewhere" })
	s.start(maintains)
	s.says("MaintenanceSkipped", "default is read-only")
	s.says("MaintenanceSkipped", "BackupStorageLocation elsewhere does not exist")
	require.Empty(t, s.jobs())
	s.accessMode(velerov1.BackupStorageLocationAccessModeReadWrite)
	s.maintained(name, ran(1))
	require.Len(t, s.jobs(), 1, "the other one still has no location: %s", other)
}

// TestAJobWhoseTimeIsUpBeforeItHasAPodCountsAsFailed looks at the number by which Velero's server goes: Kubernetes says
// so in a condition alone.
func TestAJobWhoseTimeIsUpBeforeItHasAPodCountsAsFailedOnKubernetes(t *testing.T) {
	s := newEnv(t, time.Millisecond)
	s.configureJobs("")
	name := s.repository("app-default-kopia-x7k2p")
	s.start(maintains, func(options *agent.Options) {
		options.Flags.MoverServiceAccount, options.Flags.MaintenanceTimeout = "missing", time.Second
		options.Maintenance.PodWait, options.Maintenance.DeleteDelay = time.Hour, time.Hour
	})
	after := s.maintained(name, ran(1))
	require.Contains(t, after.Status.RecentMaintenance[0].Message, "DeadlineExceeded")
	job := s.job(func(job *batchv1.Job) bool { return job.Status.Failed > 0 })
	require.False(t, objects.ReadJob(job).Released.IsZero())
}
