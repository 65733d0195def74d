package embedded_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/test/embedded"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

func start(t *testing.T) *embedded.Cluster {
	t.Helper()
	plane, err := embedded.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	return plane
}

func TestAPodVolumeIsBackedUp(t *testing.T) {
	ctx := fixture.Soon(t)
	env, err := fixture.New(ctx, start(t), t.TempDir(), fixture.Options{
		Takes: 10 * time.Millisecond, Config: `{}`, Nodes: []node.Options{{Name: "node-1"}},
	})
	t.Cleanup(func() { require.NoError(t, env.Close()) })
	require.NoError(t, err)
	agent, err := env.Agent(ctx, env.Nodes[0], t.Output())
	require.NoError(t, err)
	agent.Run(ctx)
	t.Cleanup(func() { require.NoError(t, agent.Stop()) })
	source, err := env.Source(ctx, "app", env.Nodes[0])
	require.NoError(t, err)
	backup, err := env.Backup(ctx, "nightly")
	require.NoError(t, err)
	created, err := env.PodVolumeBackup(ctx, backup, source, "data")
	require.NoError(t, err)
	ended, err := env.Transfers(testenv.PodVolumeBackup).Wait(ctx, created.Name, testenv.Settled)
	require.NoError(t, err)
	require.Equal(t, testenv.Completed, ended.Status.Phase, ended.Status.Message)
	require.NoError(t, env.WaitPodGone(ctx, env.Namespace, created.Name))
	made, err := env.MoversMade(ctx, created.Name)
	require.NoError(t, err)
	require.Equal(t, 1, made)
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
