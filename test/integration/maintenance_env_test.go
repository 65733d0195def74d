package integration

import (
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
func (s *env) configureJobs(more string) {
	here := `{"loadAffinity":[{"nodeSelector":{"matchLabels":{"kubernetes.io/hostname":"` + s.node.Name() + `"}}}]`
	if more != "" {
		here += "," + more
	}
	require.NoError(s, s.ConfigMap(s.soon(), maintenanceConfigMap, map[string]string{"global": here + "}"}))
	s.node.Faults.Add(node.Fault{Ends: &node.Result{}, Match: func(pod *corev1.Pod) bool {
		return pod.Namespace == s.Namespace && pod.Labels[api.LabelRepository] != ""
	}})
}

// ofRepositories selects maintenance jobs and their pods.
var ofRepositories = metav1.ListOptions{LabelSelector: api.LabelRepository}

// repository makes one that has been due for an hour, and returns its name.
func (s *env) repository() string {
	repository := &velerov1.BackupRepository{ObjectMeta: metav1.ObjectMeta{Name: "app-default-kopia-x7k2p", Namespace: s.Namespace}}
	repository.Spec = velerov1.BackupRepositorySpec{
		VolumeNamespace: "app", BackupStorageLocation: "default", RepositoryType: "kopia",
		MaintenanceFrequency: metav1.Duration{Duration: time.Hour},
	}
	repository.Status.Phase = velerov1.BackupRepositoryPhaseReady
	repository.Status.LastMaintenanceTime = new(metav1.NewTime(time.Now().Add(-2 * time.Hour)))
	_, err := s.Repositories().Create(s.soon(), repository, metav1.CreateOptions{})
	require.NoError(s, err)
	return repository.Name
}

// maintained waits until a repository is as wanted.
func (s *env) maintained(name string, wanted func(*velerov1.BackupRepository) bool) *velerov1.BackupRepository {
	s.Helper()
	return waitFor(s, s.Repositories(), testenv.Named(name), wanted)
}

// ran reports whether a repository has so many runs in its history.
func ran(runs int) func(*velerov1.BackupRepository) bool {
	return func(r *velerov1.BackupRepository) bool { return len(r.Status.RecentMaintenance) >= runs }
}

func (s *env) jobs() []batchv1.Job {
	list, err := s.Kube.BatchV1().Jobs(s.Namespace).List(s.soon(), ofRepositories)
	require.NoError(s, err)
	return list.Items
}

// job waits for a maintenance job.
func (s *env) job(wanted func(*batchv1.Job) bool) *batchv1.Job {
	return waitFor(s, s.Kube.BatchV1().Jobs(s.Namespace), ofRepositories, wanted)
}

// serverJob is one that a server of Velero has made, for a node.
func (s *env) serverJob(repository, class, node string) {
	label := map[string]string{api.LabelRepository: repository}
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
