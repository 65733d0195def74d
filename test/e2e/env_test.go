// Package e2e runs the agent with everything real but the kubelet: control plane, Velero server, movers and bytes.
package e2e

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// patience bounds a whole test. It only guards against hanging: Velero's server polls, and takes up to 20 s to initialise a
// repository on a machine that does nothing else.
const patience = 30 * time.Minute

const (
	jobConfig = "repo-maintenance-job" // a ConfigMap that Velero's server and agents read
	lastBytes = 2000                   // of a log that is shown where a test has failed
)

// env is an installation of Velero with its server and a node with real movers. It shares its control plane with others, so names of
// cluster-scoped objects are random.
type env struct {
	*fixture.Env
	ctx       context.Context
	suffix    string // of names
	affinity  []any  // keeps pods without a node from the nodes of the others
	serverLog string
}

func newEnv(t *testing.T) *env {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	s := &env{ctx: ctx, suffix: rand.String(10)}
	s.affinity = []any{map[string]any{"nodeSelector": map[string]any{"matchLabels": map[string]any{corev1.LabelHostname: s.nodeName()}}}}
	return s
}

func (e *env) nodeName() string { return "node-" + e.suffix }

// build installs what the options say, with a node, and configures the agents and maintenance jobs.
func (e *env) build(t *testing.T, plane *cluster.Cluster, dir string, on node.Options, options fixture.Options) {
	t.Helper()
	on.Name = e.nodeName()
	options.NodeLabels, options.Nodes = map[string]string{corev1.LabelHostname: on.Name}, []node.Options{on}
	options.Config = asJSON(t, map[string]any{"loadConcurrency": map[string]any{"globalConfig": 3}, "loadAffinity": e.affinity})
	var err error
	e.Env, err = fixture.New(e.ctx, plane, dir, options)
	t.Cleanup(func() { require.NoError(t, e.Close()); showLogs(t, dir) })
	require.NoError(t, err)
	jobs := map[string]any{"keepLatestMaintenanceJobs": 8, "loadAffinity": e.affinity}
	require.NoError(t, e.ConfigMap(e.ctx, jobConfig, map[string]string{"global": asJSON(t, jobs)}))
}

func (e *env) startServer(t *testing.T, options fixture.ServerOptions) {
	t.Helper()
	options.Args = append(options.Args, "--repo-maintenance-job-configmap", jobConfig)
	var err error
	e.serverLog, err = e.StartServer(e.ctx, options)
	require.NoError(t, err)
}

func asJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	require.NoError(t, err)
	return string(text)
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

// current and former are the control planes of this test binary, with the resource definitions of a version of Velero.
var current, former = serving("velero"), serving("velero-1.17")

// serving returns a control plane for a binary of Velero.
func serving(velero string) *fixture.Shared {
	definitions := func(ctx context.Context, plane *cluster.Cluster) error {
		binary, err := cluster.FindBinary(velero)
		if err != nil {
			return err
		}
		return testenv.InstallCRDsOf(ctx, plane.Admin(), binary)
	}
	return &fixture.Shared{Prepare: []fixture.Step{definitions, fixture.Snapshots}}
}

// planeOf returns the control plane for a version of Velero.
func planeOf(t *testing.T, velero string) *cluster.Cluster {
	t.Helper()
	shared := current
	if velero == "velero-1.17" {
		shared = former
	}
	plane, err := shared.Plane()
	require.NoError(t, err)
	return plane
}

func TestMain(m *testing.M) { os.Exit(fixture.Run(m, current, former)) }
