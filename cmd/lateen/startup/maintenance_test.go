package startup_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/cmd/lateen/startup"
	"github.com/lateen-project/lateen/exposer/priority"
)

// server returns the pod template of Velero's Deployment with these container arguments.
func server(arguments ...string) *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{
		{Name: "proxy", Args: []string{"--repo-maintenance-job-configmap=of-a-sidecar"}},
		{Name: "velero", Command: []string{"/velero"}, Args: arguments},
	}}}
}

func TestTheServersFlagAppliesIfTheAgentsHaveNone(t *testing.T) {
	joined := []string{"server", "--repo-maintenance-job-configmap=jobs"}
	for name, test := range map[string]struct {
		own    string
		server *corev1.PodTemplateSpec
		want   string
		by     startup.NamedBy
	}{
		"the agents' own flag comes first": {"own", server(joined...), "own", startup.NamedByAgents},
		"in one token":                     {"", server(joined...), "jobs", startup.NamedByServer},
		"in two tokens":                    {"", server("server", "--repo-maintenance-job-configmap", "jobs"), "jobs", startup.NamedByServer},
		"the last one counts":              {"", server("server", "--repo-maintenance-job-configmap=old", "--repo-maintenance-job-configmap=jobs"), "jobs", startup.NamedByServer},
		"a flag without a value":           {"", server("server", "--repo-maintenance-job-configmap"), "", ""},
		"no such flag":                     {"", server("server"), "", ""},
		"no server":                        {"", nil, "", ""},
		"no container":                     {"", &corev1.PodTemplateSpec{}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, by := startup.MaintenanceConfigMap(test.own, test.server)
			require.Equal(t, test.want, got)
			require.Equal(t, test.by, by)
		})
	}
}

func TestJobsTakeTheConfigMapOfTheServersFlag(t *testing.T) {
	template := server("server", "--repo-maintenance-job-configmap=jobs")
	client := fake.NewClientset(
		&appsv1.Deployment{ObjectMeta: meta("velero"), Spec: appsv1.DeploymentSpec{Template: *template}},
		&corev1.ConfigMap{ObjectMeta: meta("jobs"), Data: map[string]string{"global": `{"keepLatestMaintenanceJobs":1,"priorityClassName":"low"}`}},
	)
	found, err := startup.ReadServer(t.Context(), client, "velero")
	require.NoError(t, err)
	require.Equal(t, template, found)
	got, problems, err := startup.ReadMaintenance(t.Context(), client, startup.Options{Namespace: "velero"}, found, &velerov1.BackupRepository{})
	require.NoError(t, err)
	require.Empty(t, problems)
	require.Equal(t, 1, got.Jobs.Keep)
	require.Equal(t, "low", got.PriorityClassName)
	for reason, fail := range map[priority.Reason]error{
		priority.ConfigMissing: apierrors.NewNotFound(corev1.Resource("configmaps"), "jobs"), priority.Forbidden: notAllowed("configmaps"), "": refused(),
	} {
		broken := fake.NewClientset()
		fault(broken, "configmaps", 0, fail)
		got, problems, err := startup.ReadMaintenance(t.Context(), broken, startup.Options{Namespace: "velero"}, found, &velerov1.BackupRepository{})
		if reason == "" {
			require.ErrorContains(t, err, "get configmaps velero/jobs: ")
			continue
		}
		require.NoError(t, err)
		want := config.DefaultMaintenance()
		want.Unreadable = reason
		require.Equal(t, want, got)
		require.Len(t, problems, 1)
		require.Equal(t, "configmaps velero/jobs", problems[0].Path)
	}
	none, err := startup.ReadServer(t.Context(), client, "elsewhere")
	require.NoError(t, err)
	require.Nil(t, none)
	fault(client, "deployments", 0, refused())
	_, err = startup.ReadServer(t.Context(), client, "velero")
	require.ErrorContains(t, err, "get deployment velero/velero: ")
}

func TestLoadFindsTheConfigMapOfMaintenanceJobsWithoutAnotherRequest(t *testing.T) {
	client := installation(fullConfig, changed("velero", func(velero *appsv1.Deployment) {
		velero.Spec.Template.Spec.Containers[0].Args = []string{"server", "--repo-maintenance-job-configmap=jobs"}
	}))
	reads := fault(client, "deployments", -1, nil)
	got, err := startup.Load(t.Context(), client, options(t), newHasty())
	require.NoError(t, err)
	require.Equal(t, "jobs", got.MaintenanceConfigMap)
	require.Equal(t, startup.NamedByServer, got.MaintenanceNamedBy)
	require.Equal(t, 1, *reads)
}
