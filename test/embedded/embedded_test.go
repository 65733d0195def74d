package embedded_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

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
