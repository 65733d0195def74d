package adopt

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/lateen-project/lateen/cmd/lateen/cluster"
)

func TestAgentsThatCannotBeAdoptedAreLeftAsTheyAre(t *testing.T) {
	agent := corev1.Container{Name: "node-agent", Image: "velero/velero:v1.18.3", Command: []string{"/velero"}, Args: []string{"node-agent", "server"}}
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
		"another container": {
			change: func(pod *corev1.PodSpec) { pod.Containers = append(pod.Containers, corev1.Container{Name: "beside"}) },
			says:   "its pods have 2 containers",
		},
	} {
		t.Run(name, func(t *testing.T) {
			template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{*agent.DeepCopy()}}}
			test.change(&template.Spec)
			agents := &unstructured.Unstructured{Object: map[string]any{}}
			require.NoError(t, setTemplate(agents, template))
			before := agents.DeepCopy()
			a := adoption{Client: &cluster.Client{Kube: fake.NewClientset(), Namespace: "velero"}, options: options{image: "example.test/lateen:v1"}}
			require.ErrorContains(t, a.adopt(t.Context(), agents), test.says)
			require.Equal(t, before, agents)
		})
	}
}
