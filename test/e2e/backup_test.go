// Package e2e runs the agent with everything real but the kubelet: control plane, Velero server, movers
// and bytes.
package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/cmd/lateen/config"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/metrics"
	"github.com/lateen-project/lateen/reconcile/transfer"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/world"
)

// patience bounds the whole test: the real server takes up to 20 s to initialise a repository.
const patience = 90 * time.Second

func TestPodVolumeBackupWithRealMoverAndBytes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const nodeName, configMap, class = "e2e-node", "node-agent-config", "e2e-low"
	dir := t.TempDir()
	repository := filepath.Join(dir, "repository")
	require.NoError(t, os.Mkdir(repository, 0o755))

	plane := startCluster(ctx, t)
	require.NoError(t, world.InstallCRDs(ctx, plane.Admin()))
	velero, err := world.New(ctx, plane.Admin(), world.Options{Node: nodeName, KubeletRoot: filepath.Join(dir, "kubelet"), RepositoryDir: repository})
	require.NoError(t, err)
	require.NoError(t, velero.PriorityClass(ctx, class, 10))
	require.NoError(t, velero.ConfigMap(ctx, configMap, map[string]string{"config.json": fmt.Sprintf(`{"priorityClassName":%q}`, class)}))
	startVelero(ctx, t, plane, velero.Namespace, dir)
	kubelet := startNode(ctx, t, plane, node.Options{Name: nodeName, Root: filepath.Join(dir, "kubelet")}, repository)

	source, err := velero.SourcePod(ctx, "app", nodeName, world.EmptyDir("data"))
	require.NoError(t, err)
	source, err = velero.WaitPod(ctx, velero.Apps, source.Name, world.Ready)
	require.NoError(t, err)
	volume, err := kubelet.VolumeDir(ctx, source, "data")
	require.NoError(t, err)
	bytes := fill(t, volume)

	require.NoError(t, world.Apply(ctx, plane.Admin(), deploy.Access(velero.Namespace)...))
	startAgent(ctx, t, plane, velero.Namespace, nodeName, configMap)
	_, err = velero.Repository(ctx, velero.Apps) // a server that starts cancels what it finds in progress, so it must be up
	require.NoError(t, err)
	backup, err := velero.Backup(ctx, "nightly")
	require.NoError(t, err)
	made, err := velero.PodVolumeBackup(ctx, backup, source, "data")
	require.NoError(t, err)

	mover, err := velero.WaitPod(ctx, velero.Namespace, made.Name, func(pod *corev1.Pod) bool { return pod.Spec.NodeName != "" })
	require.NoError(t, err)
	require.Equal(t, class, mover.Spec.PriorityClassName)
	require.EqualValues(t, 10, *mover.Spec.Priority)
	ended, err := velero.Transfers(world.PodVolumeBackup).Wait(ctx, made.Name, world.Settled)
	require.NoError(t, err)
	require.Equal(t, world.Completed, ended.Status.Phase, ended.Status.Message)
	require.NotEmpty(t, ended.Status.SnapshotID)
	require.Equal(t, bytes, ended.Status.Progress.TotalBytes)
	require.Equal(t, bytes, ended.Status.Progress.BytesDone)
	require.NoError(t, velero.WaitPodGone(ctx, velero.Namespace, made.Name))
}

func startCluster(ctx context.Context, t *testing.T) *cluster.Cluster {
	t.Helper()
	binary, err := cluster.FindBinary("controlplane")
	require.NoError(t, err)
	plane, err := cluster.Start(ctx, cluster.Options{Binary: binary})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	return plane
}

func startVelero(ctx context.Context, t *testing.T, plane *cluster.Cluster, namespace, dir string) {
	t.Helper()
	binary, err := cluster.FindBinary("velero")
	require.NoError(t, err)
	own, err := plane.ServiceAccount(ctx, namespace, "velero")
	require.NoError(t, err)
	kubeconfig := filepath.Join(dir, "velero.kubeconfig")
	require.NoError(t, plane.WriteKubeconfig(own, kubeconfig, namespace))
	server, err := node.StartVeleroServer(ctx, node.ServerOptions{Velero: binary, Kubeconfig: kubeconfig, Namespace: namespace, Dir: filepath.Join(dir, "velero")})
	require.NoError(t, err)
	t.Cleanup(server.Stop)
}

func startNode(ctx context.Context, t *testing.T, plane *cluster.Cluster, options node.Options, binds ...string) *node.Node {
	t.Helper()
	binary, err := cluster.FindBinary("velero")
	require.NoError(t, err)
	options.Runner = node.Movers{Runner: node.Real{Config: plane.Admin(), Velero: binary, Binds: binds}}
	kubelet, err := node.Start(ctx, plane.Admin(), options)
	require.NoError(t, err)
	t.Cleanup(kubelet.Stop)
	return kubelet
}

// startAgent runs the agent with the rights that package deploy gives it and no others.
func startAgent(ctx context.Context, t *testing.T, plane *cluster.Cluster, namespace, nodeName, configMap string) {
	t.Helper()
	own, err := plane.ServiceAccount(ctx, namespace, deploy.ServiceAccountName)
	require.NoError(t, err)
	registry := prometheus.NewRegistry()
	server, err := agent.Listen("127.0.0.1:0", registry, false)
	require.NoError(t, err)
	options := config.Options{
		Namespace: namespace, NodeName: nodeName, NodeAgentConfigMap: configMap, MoverTemplate: "daemonset",
		ResourceTimeout: time.Minute, Workers: 4, KubeAPIQPS: 100, KubeAPIBurst: 200, StartupTimeout: 10 * time.Second,
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() {
		ended <- agent.Run(running, agent.Options{
			Config: options, Rest: own, Metrics: metrics.New(registry, "test", nodeName),
			Limits: transfer.DefaultLimits(), Clock: clock.RealClock{}, Log: t.Output(), Server: server,
		})
	}()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-ended)
		require.NoError(t, server.Close())
	})
}

// fill makes files of all sizes and returns how many bytes they have together.
func fill(t *testing.T, dir string) int64 {
	t.Helper()
	const seed, files = 7, 200
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, seed))
	var total int64
	for i := range files {
		content := make([]byte, 1<<random.IntN(16))
		for j := range content {
			content[j] = byte(random.Uint32())
		}
		sub := filepath.Join(dir, fmt.Sprintf("d%d", i%7))
		require.NoError(t, os.MkdirAll(sub, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(sub, fmt.Sprintf("f%d", i)), content, 0o600))
		total += int64(len(content))
	}
	return total
}
