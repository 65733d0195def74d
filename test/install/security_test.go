package install

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestPodSecurityOfTheAgent(t *testing.T) {
	kube, err := kubernetes.NewForConfig(plane.Admin())
	require.NoError(t, err)
	tests := map[string]struct {
		level   string
		options deploy.Options
		refused []string // what admission says against the pod; empty: it is let in
	}{
		"the default is let in where only restricted pods are": {level: "restricted"},
		"agents on Windows nodes are let in there, too":        {level: "restricted", options: deploy.Options{Windows: true}},
		"the paths of another kubelet root are the host's": {
			level: "baseline", options: deploy.Options{KubeletRoot: "/data/kubelet"}, refused: []string{"hostPath"},
		},
		"an agent that looks for itself is root and sees the host": {
			level: "restricted", options: deploy.Options{HostPath: true}, refused: []string{"hostPath", "runAsUser=0"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace, err := kube.CoreV1().Namespaces().Create(soon(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				GenerateName: "restricted-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": test.level},
			}}, metav1.CreateOptions{})
			require.NoError(t, err)
			test.options.Namespace, test.options.Image = namespace.Name, "example.test/lateen:v1"
			objects := deploy.Objects(test.options)
			require.NoError(t, testenv.Apply(soon(t), plane.Admin(), objects...))
			agents, ok := objects[len(objects)-1].(*appsv1.DaemonSet)
			require.True(t, ok)
			pod := &corev1.Pod{ObjectMeta: agents.Spec.Template.ObjectMeta, Spec: agents.Spec.Template.Spec}
			pod.Name = "agent"
			_, err = kube.CoreV1().Pods(namespace.Name).Create(soon(t), pod, metav1.CreateOptions{})
			if len(test.refused) == 0 {
				require.NoError(t, err)
				return
			}
			for _, description := range test.refused {
				require.ErrorContains(t, err, description)
			}
		})
	}
}
