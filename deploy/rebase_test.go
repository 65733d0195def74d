package deploy_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lateen-project/lateen/deploy"
)

// agents returns a pod template of Velero's agents.
func agents() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		ServiceAccountName: "velero",
		Containers: []corev1.Container{{
			Name: "node-agent", Image: "velero/velero:v1.18.3", Command: []string{"/velero"}, Args: []string{"node-agent", "server", "--features="},
			Env:   []corev1.EnvVar{{Name: "A", Value: "1"}},
			Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: deploy.MetricsPort}},
		}},
	}}
}

func adopted(t *testing.T, image string) corev1.PodTemplateSpec {
	t.Helper()
	template, err := deploy.Adopt(agents(), deploy.Adoption{Image: image})
	require.NoError(t, err)
	return template
}

func TestChangesOfAdoptedAgentsSurviveARebase(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.PodTemplateSpec)
		want   func(*corev1.PodTemplateSpec) // nil: the same change
	}{
		"an argument that was added": {change: func(now *corev1.PodTemplateSpec) {
			now.Spec.Containers[0].Args = append(now.Spec.Containers[0].Args, "--log-level=debug")
		}},
		"an argument that was exchanged": {change: func(now *corev1.PodTemplateSpec) {
			args := now.Spec.Containers[0].Args
			args[len(args)-1] = "--features=EnableCSI"
		}},
		"resources": {change: func(now *corev1.PodTemplateSpec) {
			now.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
		}},
		"a variable beside others": {change: func(now *corev1.PodTemplateSpec) {
			now.Spec.Containers[0].Env = append(now.Spec.Containers[0].Env, corev1.EnvVar{Name: "B", Value: "2"})
		}},
		"placement and annotations": {change: func(now *corev1.PodTemplateSpec) {
			now.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
			now.Spec.NodeSelector = map[string]string{"disk": "ssd"}
			now.Annotations = map[string]string{"kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z"}
		}},
		"but not what an adoption exchanges": {
			change: func(now *corev1.PodTemplateSpec) {
				now.Spec.Containers[0].Image = "example.test/lateen:patched"
				now.Spec.DeprecatedServiceAccount = now.Spec.ServiceAccountName // as the API server sets it
			},
			want: func(*corev1.PodTemplateSpec) {},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.want == nil {
				test.want = test.change
			}
			now := adopted(t, "example.test/lateen:v1")
			test.change(&now)
			for _, onto := range []corev1.PodTemplateSpec{adopted(t, "example.test/lateen:v2"), agents()} {
				want := *onto.DeepCopy()
				test.want(&want)
				rebased, changed, err := deploy.Rebase(onto, adopted(t, "example.test/lateen:v1"), now)
				require.NoError(t, err)
				require.Equal(t, want, rebased)
				require.Equal(t, name != "but not what an adoption exchanges", changed)
			}
		})
	}
}

func TestRebaseRemovesAnAddedProbeCompletely(t *testing.T) {
	now := adopted(t, "example.test/lateen:v1")
	now.Spec.Containers[0].LivenessProbe.PeriodSeconds = 30
	back, changed, err := deploy.Rebase(agents(), adopted(t, "example.test/lateen:v1"), now)
	require.NoError(t, err)
	require.False(t, changed)
	require.Nil(t, back.Spec.Containers[0].LivenessProbe)
	rebased, _, err := deploy.Rebase(adopted(t, "example.test/lateen:v2"), adopted(t, "example.test/lateen:v1"), now)
	require.NoError(t, err)
	require.EqualValues(t, 30, rebased.Spec.Containers[0].LivenessProbe.PeriodSeconds)
}

func TestRebaseKeepsProbesThatNoAdoptionAdds(t *testing.T) {
	bare := agents()
	bare.Spec.Containers[0].Ports = nil
	before, err := deploy.Adopt(bare, deploy.Adoption{Image: "lateen"})
	require.NoError(t, err)
	now, exec := *before.DeepCopy(), &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}}
	now.Spec.Containers[0].StartupProbe, now.Spec.Containers[0].LivenessProbe, now.Spec.Containers[0].ReadinessProbe = exec, exec, exec
	rebased, changed, err := deploy.Rebase(bare, before, now)
	require.NoError(t, err)
	require.True(t, changed)
	bare.Spec.Containers[0].StartupProbe, bare.Spec.Containers[0].LivenessProbe, bare.Spec.Containers[0].ReadinessProbe = exec, exec, exec
	require.Equal(t, bare, rebased)
}

func TestRebaseRefusesARenamedContainer(t *testing.T) {
	now := adopted(t, "example.test/lateen:v1")
	now.Spec.Containers[0].Name = "agent"
	_, changed, err := deploy.Rebase(agents(), adopted(t, "example.test/lateen:v1"), now)
	require.False(t, changed)
	require.ErrorContains(t, err, "container node-agent does not exist any more")
}

func TestVelerosServerIsFound(t *testing.T) {
	require.True(t, deploy.RunsServer(corev1.Container{Command: []string{"/velero"}, Args: []string{"server", "--features="}}))
	require.True(t, deploy.RunsServer(corev1.Container{Args: []string{"velero", "server"}}))
	require.False(t, deploy.RunsServer(agents().Spec.Containers[0]))
	require.False(t, deploy.RunsServer(corev1.Container{Args: []string{"server"}}))
}
