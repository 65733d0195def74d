package integration

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/exposer/build"
	"github.com/lateen-project/lateen/informers"
	"github.com/lateen-project/lateen/reconcile/maintenance"
	"github.com/lateen-project/lateen/test/node"
)

// maintenanceConfigMap is the name of the maintenance ConfigMap of every site.
const maintenanceConfigMap = "repo-maintenance-config"

// maintains is an agent that maintains repositories, as often as the test has them say, and without long waits.
func maintains(options *agent.Options) {
	options.Config.MaintenanceConcurrency, options.Config.MaintenanceTimeout = 3, time.Hour
	options.Config.MaintenanceConfigMap = maintenanceConfigMap
	options.Maintenance = maintenance.DefaultPolicy()
	options.Maintenance.PodWait, options.Maintenance.LetGo = 2*time.Second, time.Second
}

// configureJobs writes the maintenance ConfigMap: what is given for all repositories, on the node of this site, and
// what is given for that of the namespace app.
func (s *site) configureJobs(global string, own ...string) {
	s.Helper()
	data := map[string]string{"global": s.pinned(global)}
	if len(own) > 0 {
		data["app-default-kopia"] = own[0]
	}
	require.NoError(s, s.ConfigMap(s.soon(), maintenanceConfigMap, data))
}

// pinned is a configuration of maintenance jobs by which they run on the node of this site.
func (s *site) pinned(more string) string {
	here := `{"loadAffinity":[{"nodeSelector":{"matchLabels":{"kubernetes.io/hostname":"` + s.node.Name() + `"}}}]`
	if more != "" {
		here += "," + more
	}
	return here + "}"
}

// jobsEnd has the pods of maintenance jobs end like this, so many times; 0 is always.
func (s *site) jobsEnd(result node.Result, times int) {
	s.node.Faults.Add(node.Fault{Match: s.ofMaintenance, Times: times, Ends: &result})
}

// ofMaintenance tells whether a pod is that of a maintenance job of this site.
func (s *site) ofMaintenance(pod *corev1.Pod) bool {
	return pod.Namespace == s.Namespace && pod.Labels[build.LabelRepository] != ""
}

func (s *site) repositories() *informers.BackupRepositories {
	s.Helper()
	velero, err := informers.NewVelero(plane.Admin())
	require.NoError(s, err)
	return velero.BackupRepositories(s.Namespace)
}

// repository makes one that has been due for an hour.
func (s *site) repository(name string, change ...func(*velerov1.BackupRepository)) string {
	s.Helper()
	repository := &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.Namespace}}
	repository.APIVersion, repository.Kind = velerov1.SchemeGroupVersion.String(), "BackupRepository"
	repository.Spec = velerov1.BackupRepositorySpec{
		VolumeNamespace: "app", BackupStorageLocation: "default", RepositoryType: "kopia",
		MaintenanceFrequency: metav1.Duration{Duration: time.Hour},
	}
	repository.Status.Phase = velerov1.BackupRepositoryPhaseReady
	repository.Status.LastMaintenanceTime = new(metav1.NewTime(time.Now().Add(-2 * time.Hour)))
	for _, one := range change {
		one(repository)
	}
	_, err := s.repositories().Create(s.soon(), repository, metav1.CreateOptions{})
	require.NoError(s, err)
	return name
}

// maintained waits until a repository is as wanted.
func (s *site) maintained(name string, wanted func(*velerov1.BackupRepository) bool) *velerov1.BackupRepository {
	s.Helper()
	watcher, err := s.repositories().Watch(s.soon(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	require.NoError(s, err)
	defer watcher.Stop()
	var last *velerov1.BackupRepository
	for change := range watcher.ResultChan() {
		if repository, ok := change.Object.(*velerov1.BackupRepository); ok {
			if last = repository; wanted(repository) {
				return repository
			}
		}
	}
	require.Failf(s, "the repository is not as wanted", "%+v", last)
	return nil
}

// ran tells whether a repository has so many runs in its history.
func ran(runs int) func(*velerov1.BackupRepository) bool {
	return func(r *velerov1.BackupRepository) bool { return len(r.Status.RecentMaintenance) >= runs }
}

func (s *site) jobs() []batchv1.Job {
	s.Helper()
	list, err := s.Kube.BatchV1().Jobs(s.Namespace).List(s.soon(), metav1.ListOptions{LabelSelector: build.LabelRepository})
	require.NoError(s, err)
	return list.Items
}

// job waits for a maintenance job.
func (s *site) job(wanted func(*batchv1.Job) bool) *batchv1.Job {
	s.Helper()
	watcher, err := s.Kube.BatchV1().Jobs(s.Namespace).Watch(s.soon(), metav1.ListOptions{LabelSelector: build.LabelRepository})
	require.NoError(s, err)
	defer watcher.Stop()
	for change := range watcher.ResultChan() {
		if job, ok := change.Object.(*batchv1.Job); ok && wanted(job) {
			return job
		}
	}
	require.Fail(s, "no such job")
	return nil
}

func TestARepositoryThatIsDueIsMaintained(t *testing.T) {
	s := newSite(t, time.Millisecond)
	class := "low-" + s.Namespace
	require.NoError(t, s.PriorityClass(s.soon(), class, 10))
	s.configureJobs(`"priorityClassName":"`+class+`"`, `{"keepLatestMaintenanceJobs":1,"podResources":{"memoryRequest":"64Mi"}}`)
	s.jobsEnd(node.Result{}, 0)
	name := s.repository("app-default-kopia-x7k2p")
	s.configure(`{}`)
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
	require.True(t, build.OwnedBy(&jobs[0], after.UID))
	s.says("MaintenanceSucceeded", "succeeded")
	require.Equal(t, 1, r.metric("velero_repo_maintenance_success_total", "repository_name", name))
	require.Zero(t, r.metric("velero_repo_maintenance_failure_total", "repository_name", name))
	require.Equal(t, 1, r.metric("velero_repo_maintenance_duration_seconds", "repository_name", name))
	require.Equal(t, 1, r.metric("lateen_priority_class_info", "consumer", "maintenance-job", "configured", class, "effective", class))
}

// TestAJobWithoutAPodIsMadeAgainWithoutItsClass is W39: Velero's server would wait for such a job for ever.
func TestAJobWithoutAPodIsMadeAgainWithoutItsClass(t *testing.T) {
	s := newSite(t, time.Millisecond)
	s.retries = true
	name := s.repository("app-default-kopia-x7k2p")
	s.serverJob(name, "gone-"+s.Namespace, s.node.Name())
	s.configureJobs("")
	s.jobsEnd(node.Result{}, 0)
	s.configure(`{}`)
	r := s.start(maintains)
	s.maintained(name, ran(1))
	after := s.maintained(name, ran(2))
	runs := after.Status.RecentMaintenance
	require.Equal(t, velerov1.BackupRepositoryMaintenanceFailed, runs[0].Result)
	require.Contains(t, runs[0].Message, maintenance.ClassGone+"gone-"+s.Namespace)
	require.Nil(t, runs[0].CompleteTimestamp)
	require.Equal(t, velerov1.BackupRepositoryMaintenanceSucceeded, runs[1].Result)
	require.Len(t, s.jobs(), 1, "the job without a pod is gone")
	require.Equal(t, 1, r.metric("velero_repo_maintenance_failure_total", "repository_name", name))
}

// serverJob is one that a server of Velero has made, for a node.
func (s *site) serverJob(repository, class, node string) {
	s.Helper()
	label := map[string]string{build.LabelRepository: repository}
	_, err := s.Kube.BatchV1().Jobs(s.Namespace).Create(s.soon(), &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: repository + "-maintain-job-1", Labels: label},
		Spec: batchv1.JobSpec{BackoffLimit: new(int32(0)), Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: label},
			Spec: corev1.PodSpec{
				NodeSelector:      map[string]string{corev1.LabelHostname: node},
				PriorityClassName: class, RestartPolicy: corev1.RestartPolicyNever,
				Containers: []corev1.Container{{Name: "velero", Image: "velero"}},
			},
		}},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
}

func TestHowAJobFailedIsWrittenDown(t *testing.T) {
	for name, test := range map[string]struct {
		result node.Result
		want   string
	}{
		"with what Velero's program says": {node.Result{ExitCode: 1, Message: "level=error\nRepo maintenance error: repository is locked"}, "repository is locked"},
		"with the memory that it took":    {node.Result{ExitCode: 137, Reason: "OOMKilled"}, maintenance.OutOfMemory},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, time.Millisecond)
			s.configureJobs(`"podResources":{"memoryLimit":"1Gi"}`)
			s.jobsEnd(test.result, 1)
			s.jobsEnd(node.Result{}, 0)
			repository := s.repository("app-default-kopia-x7k2p")
			s.configure(`{}`)
			s.start(maintains, func(options *agent.Options) { options.Maintenance.FirstRetry = time.Second })
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

func TestAReadOnlyLocationHasNoMaintenance(t *testing.T) {
	s := newSite(t, time.Millisecond)
	s.configureJobs("")
	s.jobsEnd(node.Result{}, 0)
	s.accessMode(velerov1.BackupStorageLocationAccessModeReadOnly)
	name := s.repository("app-default-kopia-x7k2p")
	other := s.repository("app-elsewhere-kopia-b3c4d", func(r *velerov1.BackupRepository) { r.Spec.BackupStorageLocation = "elsewhere" })
	s.configure(`{}`)
	s.start(maintains)
	s.says("MaintenanceSkipped", "default is read-only")
	s.says("MaintenanceSkipped", "there is no BackupStorageLocation elsewhere")
	require.Empty(t, s.jobs())
	s.accessMode(velerov1.BackupStorageLocationAccessModeReadWrite)
	s.maintained(name, ran(1))
	require.Len(t, s.jobs(), 1, "the other one still has no location: %s", other)
}

func (s *site) accessMode(mode velerov1.BackupStorageLocationAccessMode) {
	s.Helper()
	velero, err := informers.NewVelero(plane.Admin())
	require.NoError(s, err)
	patch := fmt.Sprintf(`{"spec":{"accessMode":%q}}`, mode)
	_, err = velero.BackupStorageLocations(s.Namespace).Patch(s.soon(), "default", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(s, err)
}

// TestAJobWhoseTimeIsUpBeforeItHasAPodCountsAsFailed looks at the number by which Velero's server goes: Kubernetes says
// so in a condition alone.
func TestAJobWhoseTimeIsUpBeforeItHasAPodCountsAsFailed(t *testing.T) {
	s := newSite(t, time.Millisecond)
	s.configureJobs("")
	name := s.repository("app-default-kopia-x7k2p")
	s.configure(`{}`)
	s.start(maintains, func(options *agent.Options) {
		options.Config.MoverServiceAccount, options.Config.MaintenanceTimeout = "missing", time.Second
		options.Maintenance.PodWait, options.Maintenance.LetGo = time.Hour, time.Hour
	})
	after := s.maintained(name, ran(1))
	require.Contains(t, after.Status.RecentMaintenance[0].Message, "DeadlineExceeded")
	job := s.job(func(job *batchv1.Job) bool { return job.Status.Failed > 0 })
	require.False(t, build.ReadJob(job).Released.IsZero())
}
