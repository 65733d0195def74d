// Package e2e runs the agent with everything real but the kubelet: control plane, Velero server, movers
// and bytes.
package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// patience bounds a whole test, on a machine that has others to do at the same time: the real server takes up to 20 s to
// initialise a repository.
const patience = 10 * time.Minute

const (
	nodeName  = "e2e-node"
	configMap = "node-agent-config"
	jobConfig = "repo-maintenance-job" // a ConfigMap that Velero's server reads, and agents that are told to
	keptJobs  = 5
	lowClass  = "e2e-low"
	lowValue  = 10
	lastLines = 10 // of a log that is shown where a test has failed
)

// env is a cluster with Velero, its server, a node with real movers, and an agent.
type env struct {
	*testenv.Env
	ctx     context.Context
	plane   *cluster.Cluster
	kubelet *node.Node
	server  *node.VeleroServer
	agent   *agentRun

	repository *velerov1.BackupRepository
	jobs       gate
}

// ofEveryVersion runs a test with the movers and the resource definitions of each Velero that is built into bin/.
func ofEveryVersion(t *testing.T, test func(t *testing.T, s *env), change ...func(*agent.Options)) {
	t.Helper()
	for _, name := range []string{"velero", "velero-1.17"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newEnv(t, name, change...))
		})
	}
}

// newEnv builds one whose movers are that binary, and have a priority class of their own. The server is always the newest:
// it only initialises and maintains repositories.
func newEnv(t *testing.T, velero string, change ...func(*agent.Options)) *env {
	t.Helper()
	movers, err := cluster.FindBinary(velero)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	dir := t.TempDir()
	repository := filepath.Join(dir, "repository")
	require.NoError(t, os.Mkdir(repository, 0o755))
	s := &env{ctx: ctx, plane: startCluster(ctx, t)}
	require.NoError(t, testenv.InstallCRDsOf(ctx, s.plane.Admin(), movers))
	s.Env, err = testenv.New(ctx, s.plane.Admin(), testenv.Options{Node: nodeName, KubeletRoot: filepath.Join(dir, "kubelet"), RepositoryDir: repository})
	require.NoError(t, err)
	require.NoError(t, s.PriorityClass(ctx, lowClass, lowValue))
	require.NoError(t, s.ConfigMap(ctx, configMap, map[string]string{"config.json": `{"priorityClassName":"` + lowClass + `"}`}))
	require.NoError(t, s.ConfigMap(ctx, jobConfig, map[string]string{"global": fmt.Sprintf(`{"keepLatestMaintenanceJobs":%d}`, keptJobs)}))
	s.server = startVelero(ctx, t, s.plane, s.Namespace, dir)
	runner := node.Real{Config: s.plane.Admin(), Velero: movers, Binds: []string{repository}}
	s.kubelet, err = node.Start(ctx, s.plane.Admin(), node.Options{
		Name: nodeName, Root: filepath.Join(dir, "kubelet"), Runner: node.Movers{Runner: runner, Jobs: gated{runner, &s.jobs}},
	})
	require.NoError(t, err)
	t.Cleanup(s.kubelet.Stop)
	require.NoError(t, testenv.Apply(ctx, s.plane.Admin(), deploy.RBAC(s.Namespace)...))
	s.startAgent(t, change...)
	s.repository, err = s.Repository(ctx, s.Apps) // a server that starts cancels what it finds in progress, so it must be up
	require.NoError(t, err)
	return s
}

// completed waits for the end of a transfer and of its mover.
func (s *env) completed(t *testing.T, kind testenv.Kind, name string) *testenv.Transfer {
	t.Helper()
	ended, err := s.Transfers(kind).Wait(s.ctx, name, testenv.Settled)
	require.NoError(t, err)
	require.Equal(t, testenv.Completed, ended.Status.Phase, ended.Status.Message)
	require.Equal(t, ended.Status.Progress.TotalBytes, ended.Status.Progress.BytesDone)
	require.NoError(t, s.WaitPodGone(s.ctx, s.Namespace, name))
	return ended
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

func startVelero(
	ctx context.Context, t *testing.T, plane *cluster.Cluster, namespace, dir string, change ...func(*node.ServerOptions),
) *node.VeleroServer {
	t.Helper()
	binary, err := cluster.FindBinary("velero")
	require.NoError(t, err)
	own, err := plane.ServiceAccount(ctx, namespace, "velero")
	require.NoError(t, err)
	kubeconfig := filepath.Join(dir, "velero.kubeconfig")
	require.NoError(t, plane.WriteKubeconfig(own, kubeconfig, namespace))
	options := node.ServerOptions{Velero: binary, Kubeconfig: kubeconfig, Namespace: namespace, Dir: filepath.Join(dir, "velero")}
	options.Args = []string{"--repo-maintenance-job-configmap", jobConfig}
	options.Addresses = []string{strings.TrimPrefix(own.Host, "https://")}
	for _, alter := range change {
		alter(&options)
	}
	server, err := node.StartVeleroServer(ctx, options)
	require.NoError(t, err)
	t.Cleanup(func() { server.Stop(); logTail(t, "Velero's server", server.Log()) })
	return server
}

// logTail shows the end of a log of a test that has failed.
func logTail(t *testing.T, whose, path string) {
	t.Helper()
	log, err := os.ReadFile(path)
	if err == nil && t.Failed() {
		lines := strings.Split(string(log), "\n")
		t.Logf("the log of %s ends with:\n%s", whose, strings.Join(lines[max(len(lines)-lastLines, 0):], "\n"))
	}
}
