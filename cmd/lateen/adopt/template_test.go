package adopt

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/lateen-project/lateen/cmd/lateen/cluster"
	"github.com/lateen-project/lateen/deploy"
)

// velerosAgents returns a DaemonSet of Velero's agents. The template has a field that this program does not know.
func velerosAgents(t *testing.T, name string, change func(*corev1.PodSpec)) *unstructured.Unstructured {
	t.Helper()
	pod := corev1.PodSpec{ServiceAccountName: "velero", Containers: []corev1.Container{{
		Name: "node-agent", Image: "velero/velero:v1.18.3", Command: []string{"/velero"}, Args: []string{"node-agent", "server", "--log-level", "info", "--mover-retries=4"},
	}}}
	change(&pod)
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&corev1.PodTemplateSpec{Spec: pod})
	require.NoError(t, err)
	fields["spec"].(map[string]any)["newer"] = "field"
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": map[string]any{"name": name, "namespace": "velero", "uid": name},
		"spec": map[string]any{"template": fields},
	}}
}

func TestAgentsThatCannotBeAdoptedAreLeftAsTheyAre(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*corev1.PodSpec)
		says   string
	}{
		"an argument that Lateen does not know": {
			change: func(pod *corev1.PodSpec) { pod.Containers[0].Args = append(pod.Containers[0].Args, "--no-such-flag=1") },
			says:   "unknown flag: --no-such-flag",
		},
		"another program": {
			change: func(pod *corev1.PodSpec) { pod.Containers[0].Args = []string{"server"} },
			says:   "does not run velero node-agent server",
		},
		"Lateen's agents": {
			change: func(pod *corev1.PodSpec) { pod.Containers[0].Args = []string{"node-agent"} },
			says:   "has no annotation lateen.dev/adopted-from",
		},
		"another container": {
			change: func(pod *corev1.PodSpec) { pod.Containers = append(pod.Containers, corev1.Container{Name: "beside"}) },
			says:   "its pods have 2 containers",
		},
	} {
		t.Run(name, func(t *testing.T) {
			agents := velerosAgents(t, deploy.DaemonSetName, test.change)
			before := agents.Object["spec"]
			a := adoption{Client: &cluster.Client{Kube: fake.NewClientset(), Namespace: "velero"}, options: options{image: "example.test/lateen:v1"}}
			require.ErrorContains(t, a.adopt(t.Context(), agents), test.says)
			require.Equal(t, before, agents.Object["spec"])
		})
	}
}

func TestProbesUseThePortOfTheArguments(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		port int // 0: no probe
	}{
		"the default":          {port: 8085},
		"another port":         {args: []string{"--metrics-address=:9090"}, port: 9090},
		"in a word of its own": {args: []string{"--metrics-address", "[::]:9090"}, port: 9090},
		"the last of two":      {args: []string{"--metrics-address=:9090", "--metrics-address=0.0.0.0:9091"}, port: 9091},
		"loopback":             {args: []string{"--metrics-address=127.0.0.1:8085"}},
		"loopback by name":     {args: []string{"--metrics-address=localhost:8085"}},
	} {
		t.Run(name, func(t *testing.T) {
			agents := velerosAgents(t, deploy.DaemonSetName, func(pod *corev1.PodSpec) {
				pod.Containers[0].Args = append(pod.Containers[0].Args, test.args...)
				pod.Containers[0].Ports = []corev1.ContainerPort{{Name: "metrics", ContainerPort: deploy.MetricsPort}}
			})
			a := adoption{Client: &cluster.Client{Kube: fake.NewClientset(), Namespace: "velero"}, options: options{image: "example.test/lateen:v1"}}
			require.NoError(t, a.adopt(t.Context(), agents))
			template, err := readTemplate(agents)
			require.NoError(t, err)
			container := template.Spec.Containers[0]
			for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
				if test.port == 0 {
					require.Nil(t, probe)
				} else {
					require.Equal(t, test.port, probe.HTTPGet.Port.IntValue())
				}
			}
		})
	}
}
