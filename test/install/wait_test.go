package install

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestInstallWaitsWhileNoNodeTakesAnAgent(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience) // a control plane of its own: nodes are everybody's
	defer cancel()
	own, err := cluster.Start(ctx, cluster.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Stop()) })
	s := envOf(t, own)
	s.played(own, "tainted", nil)
	s.played(own, "other", map[string]string{corev1.LabelOSStable: "plan9"}) // takes the server
	s.patchNode("tainted", `{"spec":{"taints":[{"key":"dedicated","value":"db","effect":"NoSchedule"}]}}`)

	install := s.start(append([]string{"install", "--wait"}, usual(t)...)...)
	install.prints("Deployment velero: 1 of 1 pods ready\n")
	install.prints("DaemonSet node-agent: no node is eligible for its pods: " +
		"node selector kubernetes.io/os=linux does not match (node other); taint dedicated=db:NoSchedule is not tolerated (node tainted)\n")
	s.patchNode("tainted", `{"spec":{"taints":null}}`)
	out, reported, err := install.wait()
	require.NoError(t, err, reported)
	require.Contains(t, out, "DaemonSet node-agent: 1 of 1 pods ready\n")

	out, reported = s.install("--wait", "--use-node-agent-windows")
	require.Empty(t, reported)
	require.Contains(t, out, "DaemonSet node-agent-windows: no Windows node in the cluster, nothing to wait for\n")
}

// played starts a node of a control plane, whose pods run and do nothing.
func (s *env) played(plane *cluster.Cluster, name string, labels map[string]string) {
	kubelet, err := node.Start(soon(s.T), plane.Admin(), node.Options{Name: name, Root: s.TempDir(), Labels: labels})
	require.NoError(s, err)
	s.Cleanup(kubelet.Stop)
}

func (s *env) patchNode(name, patch string) {
	_, err := s.kube.CoreV1().Nodes().Patch(soon(s.T), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(s, err)
}
