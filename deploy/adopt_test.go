package deploy_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
)

// agents returns a pod template of Velero's agents.
func agents() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		ServiceAccountName: "velero",
		Containers: []corev1.Container{{
			Name: "node-agent", Image: "velero/velero:v1.18.3", Command: []string{"/velero"}, Args: []string{"node-agent", "server", "--features=", "--log-level", "info"},
			Env:          []corev1.EnvVar{{Name: "A", Value: "1"}},
			Ports:        []corev1.ContainerPort{{Name: "metrics", ContainerPort: deploy.MetricsPort}},
			VolumeMounts: []corev1.VolumeMount{{Name: "scratch", MountPath: "/scratch"}, {Name: api.HostPodsVolume, MountPath: "/host_pods"}},
		}},
	}}
}

// earlier are the arguments of the adoption that adopted returns.
func earlier() []string { return append(deploy.HostPathArgs(agents()), "--mover-image=first") }

func adopt(t *testing.T, template corev1.PodTemplateSpec, adoption deploy.Adoption) corev1.PodTemplateSpec {
	t.Helper()
	adopted, err := deploy.Adopt(template, adoption)
	require.NoError(t, err)
	return adopted
}

func adopted(t *testing.T) corev1.PodTemplateSpec {
	t.Helper()
	return adopt(t, agents(), deploy.Adoption{Image: "example.test/lateen:v1", Args: earlier(), MetricsPort: deploy.MetricsPort})
}

func TestChangesOfAdoptedAgentsSurvive(t *testing.T) {
	for name, change := range map[string]func(container *corev1.Container, pod *corev1.PodSpec){
		"no change": func(*corev1.Container, *corev1.PodSpec) {},
		"an added argument": func(container *corev1.Container, _ *corev1.PodSpec) {
			container.Args = append(container.Args, "--features=EnableCSI")
		},
		"an argument's value": func(container *corev1.Container, _ *corev1.PodSpec) {
			container.Args[slices.Index(container.Args, "info")] = "debug"
		},
		"a removed argument": func(container *corev1.Container, _ *corev1.PodSpec) {
			container.Args = deploy.Without(container.Args, []string{"--features="})
		},
		"a removed argument of the adoption": func(container *corev1.Container, _ *corev1.PodSpec) {
			container.Args = deploy.Without(container.Args, []string{"--mover-image=first"})
		},
		"a variable":      func(container *corev1.Container, _ *corev1.PodSpec) { container.Env[0].Value = "2" },
		"a node selector": func(_ *corev1.Container, pod *corev1.PodSpec) { pod.NodeSelector = map[string]string{"disk": "ssd"} },
		"a probe of the user's": func(container *corev1.Container, _ *corev1.PodSpec) {
			container.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
		},
		"a probe of the user's by HTTP": func(container *corev1.Container, _ *corev1.PodSpec) {
			container.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/metrics"}}}
		},
		"resources": func(container *corev1.Container, _ *corev1.PodSpec) {
			container.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			now, want := adopted(t), agents()
			change(&now.Spec.Containers[0], &now.Spec)
			change(&want.Spec.Containers[0], &want.Spec)
			args, _, err := deploy.AgentArgs(want)
			require.NoError(t, err)
			restored, err := deploy.Restore(now, agents(), args)
			require.NoError(t, err)
			require.Equal(t, want, restored)

			again := adopt(t, now, deploy.Adoption{Image: "example.test/lateen:v1", Args: earlier(), EarlierArgs: earlier(), MetricsPort: deploy.MetricsPort})
			require.Equal(t, now, again)
		})
	}
}

func TestANewAdoptionReplacesWhatTheEarlierOneSet(t *testing.T) {
	now := adopted(t)
	now.Spec.Containers[0].ReadinessProbe.PeriodSeconds = 30
	again := adopt(t, now, deploy.Adoption{Image: "example.test/lateen:v2", Args: []string{"--host-path=/host_pods", "--mover-image=second"}, EarlierArgs: earlier(), MetricsPort: 9090})
	container := again.Spec.Containers[0]
	require.Equal(t, "example.test/lateen:v2", container.Image)
	require.Equal(t, []string{"node-agent", "--features=", "--log-level", "info", "--host-path=/host_pods", "--mover-image=second"}, container.Args)
	for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
		require.Equal(t, 9090, probe.HTTPGet.Port.IntValue())
	}
	require.EqualValues(t, 30, container.ReadinessProbe.PeriodSeconds)

	again = adopt(t, again, deploy.Adoption{Image: "example.test/lateen:v2", EarlierArgs: earlier()})
	require.Nil(t, again.Spec.Containers[0].LivenessProbe, "the kubelet does not reach the agent")
}

// An agent's program may be in the command, and any container may be added later.
func TestRestoredAgentsRunVelerosProgram(t *testing.T) {
	original := agents()
	velero := &original.Spec.Containers[0]
	velero.Command, velero.Args, velero.Env = []string{"/velero", "node-agent", "server", "--features="}, nil, []corev1.EnvVar{{Name: "POD_UID", Value: "own"}}
	now := adopt(t, original, deploy.Adoption{Image: "example.test/lateen:v1", MetricsPort: deploy.MetricsPort})
	now.Spec.Containers = append([]corev1.Container{{Name: "beside"}}, now.Spec.Containers...)
	for _, test := range []struct{ args, command, want []string }{
		{args: []string{"--features="}, command: velero.Command},
		{args: []string{"--log-level=debug"}, command: []string{"/velero", "node-agent", "server"}, want: []string{"--log-level=debug"}},
	} {
		restored, err := deploy.Restore(now, original, test.args)
		require.NoError(t, err)
		container := restored.Spec.Containers[1]
		require.Equal(t, [][]string{test.command, test.want}, [][]string{container.Command, container.Args})
		require.Equal(t, velero.Env, container.Env, "the adoption did not add it")
		require.Equal(t, "velero", restored.Spec.ServiceAccountName)
	}
	_, runsVelero, err := deploy.AgentArgs(corev1.PodTemplateSpec{})
	require.ErrorContains(t, err, "does not run velero node-agent server")
	require.False(t, runsVelero)
}
