// Package e2e runs the agent with everything real but the kubelet: control plane, Velero server, movers
// and bytes.
package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// patience bounds a whole test. It only guards against hanging: Velero's server polls, and takes up to 20 s to initialise a
// repository on a machine that does nothing else.
const patience = 30 * time.Minute

const (
	nodeName  = "e2e-node"
	jobConfig = "repo-maintenance-job" // a ConfigMap that Velero's server reads, and agents with --repo-maintenance-frequency
	lowClass  = "e2e-low"
	lowValue  = 10
	lastBytes = 2000 // of a log that is shown where a test has failed
)

// entries is the number of runs that Velero's server keeps in the history of a repository: 3, and 25 from 1.19 on.
var entries = flag.Int("history", 3, "runs that the server keeps in the history of a repository")

// env is a cluster with Velero, its server, a node with real movers, and an agent.
type env struct {
	*fixture.Env
	plane      *cluster.Cluster
	ctx        context.Context
	server     *node.VeleroServer
	agent      *fixture.Agent
	repository *velerov1.BackupRepository
	jobs       gate
}

// newEnv builds one with an agent in this process.
func newEnv(t *testing.T, change ...func(*agent.Options)) *env {
	t.Helper()
	s := buildEnv(t, "velero")
	s.startAgent(t, change...)
	return s
}

// buildEnv builds one without an agent, whose movers are that binary, and have a priority class of their own. The server is
// always the newest: it only initialises and maintains repositories.
func buildEnv(t *testing.T, velero string) *env {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	movers, plane, dir := binary(t, velero), startCluster(ctx, t), t.TempDir()
	options := fixture.Options{Config: `{"priorityClassName":"` + lowClass + `"}`}
	options.Node, options.RepositoryDir = nodeName, filepath.Join(dir, "repository")
	require.NoError(t, os.Mkdir(options.RepositoryDir, 0o755))
	s := &env{ctx: ctx}
	runner := node.Real{Config: plane.Admin(), Velero: movers, Binds: []string{options.RepositoryDir}}
	options.Nodes = []node.Options{{Name: nodeName, Runner: node.Movers{Runner: runner, Jobs: gated{runner, &s.jobs}}}}
	s.build(t, plane, dir, movers, options)
	require.NoError(t, s.PriorityClass(ctx, lowClass, lowValue))
	s.startServer(t, node.ServerOptions{})
	var err error
	s.repository, err = s.Repository(ctx, s.Apps) // a server that starts cancels what it finds in progress, so it must be up
	require.NoError(t, err)
	return s
}

// build installs the resource definitions of a Velero, and what the options say.
func (s *env) build(t *testing.T, plane *cluster.Cluster, dir, velero string, options fixture.Options) {
	t.Helper()
	require.NoError(t, testenv.InstallCRDsOf(s.ctx, plane.Admin(), velero))
	var err error
	s.plane = plane
	s.Env, err = fixture.New(s.ctx, plane, dir, options)
	t.Cleanup(func() { require.NoError(t, s.Close()); showLogs(t, dir) })
	require.NoError(t, err)
	require.NoError(t, s.ConfigMap(s.ctx, jobConfig, map[string]string{"global": fmt.Sprintf(`{"keepLatestMaintenanceJobs":%d}`, *entries+5)}))
}

func (s *env) startServer(t *testing.T, options node.ServerOptions) {
	t.Helper()
	options.Args = append(options.Args, "--repo-maintenance-job-configmap", jobConfig)
	var err error
	s.server, err = s.StartServer(s.ctx, options)
	require.NoError(t, err)
}

// startAgent runs the agent with the rights that package deploy gives it and no others.
func (s *env) startAgent(t *testing.T, change ...func(*agent.Options)) {
	t.Helper()
	started, err := s.Agent(s.ctx, s.Nodes[0], t.Output(), change...)
	require.NoError(t, err)
	started.Run(s.ctx)
	s.agent = started
	t.Cleanup(func() { require.NoError(t, started.Stop()) })
}

// stopAgent ends the agent as SIGTERM does.
func (s *env) stopAgent(t *testing.T) {
	t.Helper()
	require.NoError(t, s.agent.Stop())
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
	plane, err := cluster.Start(ctx, cluster.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	return plane
}

func binary(t *testing.T, name string) string {
	t.Helper()
	path, err := cluster.FindBinary(name)
	require.NoError(t, err)
	return path
}

// showLogs shows the ends of all logs of a test that has failed.
func showLogs(t *testing.T, dir string) {
	t.Helper()
	for _, pattern := range []string{"*.log", "*/*.log"} {
		logs, _ := filepath.Glob(filepath.Join(dir, pattern)) // the pattern is good
		for _, path := range logs {
			if log, err := os.ReadFile(path); err == nil && t.Failed() {
				t.Logf("%s ends with:\n%s", strings.TrimPrefix(path, dir), log[max(len(log)-lastBytes, 0):])
			}
		}
	}
}
