// Package integration runs agents in a cluster with simulated kubelets and movers. Each test has an embedded cluster of its own, except
// those whose names end with OnKubernetes. They need what the embedded cluster lacks, such as rights, quotas, webhooks and preemption,
// and share a real control plane, where agents have the rights that package deploy gives them.
package integration

import (
	"context"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/embedded"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// nodeSuffix is how many random characters make the name of a node unlike any other.
const nodeSuffix = 10

// env is a test's own installation of Velero, with nodes and a pod whose volume is backed up.
type env struct {
	*testing.T
	*fixture.Env

	node         *node.Node // the first one
	source       *corev1.Pod
	backup       *velerov1.Backup
	storageClass string // of volumes and snapshots, once volumes was called
}

// newEnv builds an environment of one node for a test that runs beside others. Movers take as long as given from InProgress to the end.
func newEnv(t *testing.T, takes time.Duration) *env {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	name := "node-" + rand.String(nodeSuffix)
	s := &env{T: t}
	plane := planeOf(t)
	options := fixture.Options{Takes: takes, Config: `{}`}
	options.NodeLabels = map[string]string{"fleet": name}
	options.Nodes = []node.Options{{Name: name + "-a", Labels: options.NodeLabels}}
	var err error
	s.Env, err = fixture.New(ctx, plane, t.TempDir(), options)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, err)
	t.Cleanup(func() {
		soon, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), testenv.Patience)
		defer cancel()
		sent, err := plane.Audit(soon, cluster.Query{User: s.User()})
		require.NoError(t, err)
		require.Empty(t, sent.Where(cluster.Record.Forbidden), "RBAC has denied it")
	})
	s.node = s.Nodes[0]
	s.source, err = s.Source(ctx, "app-on-"+s.node.Name(), s.node)
	require.NoError(t, err)
	s.backup, err = s.Backup(ctx, "nightly")
	require.NoError(t, err)
	return s
}

// soon bounds one wait, which only guards against hanging.
func (e *env) soon() context.Context { return fixture.Soon(e.T) }

// configure writes the node-agent ConfigMap.
func (e *env) configure(json string) {
	require.NoError(e, e.Configure(e.soon(), json))
}

// transfer creates a PodVolumeBackup of the source pod's volume.
func (e *env) transfer(change ...func(*velerov1.PodVolumeBackup)) string {
	created, err := e.PodVolumeBackup(e.soon(), e.backup, e.source, "data", change...)
	require.NoError(e, err)
	return created.Name
}

// completes waits until a PodVolumeBackup is Completed, and checks its labels.
func (e *env) completes(name string) *testenv.Transfer {
	backup := e.settles(testenv.PodVolumeBackup, name, testenv.Completed)
	require.Equal(e, string(e.backup.UID), backup.Labels[velerov1.BackupUIDLabel], "labels of Velero's server are lost")
	return backup
}

// says waits for a Kubernetes Event with that reason whose message contains the words.
func (e *env) says(reason, description string) *corev1.Event {
	event, err := e.WaitEvent(e.soon(), func(event *corev1.Event) bool {
		return event.Reason == reason && strings.Contains(event.Message, description)
	})
	require.NoError(e, err, "no Event %s with %q", reason, description)
	return event
}

// shared is the real control plane of this test binary.
var shared = fixture.Shared{Prepare: []fixture.Step{fixture.Definitions, fixture.Snapshots}}

// planeOf returns the cluster for a test.
func planeOf(t *testing.T) fixture.Plane {
	t.Helper()
	if strings.Contains(t.Name(), "OnKubernetes") {
		plane, err := shared.Plane()
		require.NoError(t, err)
		return plane
	}
	plane, err := embedded.Start(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, plane.Stop()) })
	return plane
}

func TestMain(m *testing.M) { os.Exit(fixture.Run(m, &shared)) }

// agentRun is an agent of an environment.
type agentRun struct {
	*fixture.Agent
	env *env
}

// start runs an agent as `lateen node-agent` assembles it. It ends with the test at the latest.
func (e *env) start(changes ...func(*agent.Options)) *agentRun {
	// Movers are short, and the writes of their progress are tested.
	changes = append([]func(*agent.Options){func(options *agent.Options) { options.Limits.FirstProgress = 0 }}, changes...)
	a, err := e.Agent(e.soon(), e.node, io.Discard, changes...)
	require.NoError(e, err)
	logger := ktesting.NewLogger(e.T, ktesting.NewConfig(ktesting.Verbosity(2)))
	a.Run(klog.NewContext(context.WithoutCancel(e.Context()), logger))
	e.Cleanup(func() {
		if err := a.Stop(); err != nil {
			logger.Error(err, "Agent ended")
		}
	})
	return &agentRun{a, e}
}

// metric is the sum of all series with these labels, given as name, value, and so on.
func (a *agentRun) metric(name string, labels ...string) int {
	a.env.Helper()
	sum, err := a.Metric(name, labels...)
	require.NoError(a.env, err)
	return sum
}
