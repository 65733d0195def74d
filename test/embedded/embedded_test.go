package embedded_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/test/conformance"
	"github.com/lateen-project/lateen/test/embedded"
)

func start(t *testing.T) *embedded.Cluster {
	t.Helper()
	plane, err := embedded.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	return plane
}

func TestWhatTheClusterLacksFailsAtOnceAndNamesTheRealControlPlane(t *testing.T) {
	client, err := kubernetes.NewForConfig(start(t).Admin())
	require.NoError(t, err)
	const says = "the embedded cluster has no resourcequotas: what needs them runs on the real control plane (test/cluster)"
	quotas, quota := client.CoreV1().ResourceQuotas("default"), &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "none"}}
	_, err = quotas.Create(t.Context(), quota, metav1.CreateOptions{})
	require.ErrorContains(t, err, says)
	_, err = quotas.Apply(t.Context(), applycorev1.ResourceQuota("none", "default"), metav1.ApplyOptions{FieldManager: "test"})
	require.ErrorContains(t, err, says, "and for server-side apply")
}

// mostReal is the number of conformance cases that need the real control plane.
const mostReal = 7

// Each case has a cluster of its own. The package conformance plays them on the real control plane, and records how they end.
func TestTheAgentConforms(t *testing.T) {
	all, err := conformance.Cases()
	require.NoError(t, err)
	agent, err := conformance.AgentNamed("lateen")
	require.NoError(t, err)
	skipped := 0
	for _, testCase := range all {
		if testCase.NeedsRealControlPlane() {
			skipped++
			continue
		}
		t.Run(string(testCase.Kind)+"/"+testCase.Title, func(t *testing.T) {
			t.Parallel()
			on, end, err := conformance.NewPlane(t.Context(), start(t), t.TempDir())
			t.Cleanup(end)
			require.NoError(t, err)
			status, err := on.Play(t.Context(), agent, testCase, t.TempDir())
			require.NoError(t, err)
			require.NoError(t, testCase.CompareStatus(status), "the embedded cluster is unlike the real control plane")
		})
	}
	require.LessOrEqual(t, skipped, mostReal)
}
