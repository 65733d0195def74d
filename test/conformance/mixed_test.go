package conformance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	velerov2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/csi"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// mixed is an installation with two nodes, on one of which Velero's agent runs and on the other one Lateen's. Both live as
// long as the test; which of them accepts a transfer is decided by having the other one stand still.
type mixed struct {
	*testing.T
	*fixture.Env
	backup  *velerov1.Backup
	restore *velerov1.Restore
	class   string
	nodes   map[string]string // by agent
	agents  map[string]*fixture.Program
}

// agents has those of an installation, in the order of their nodes.
var agents = []string{"velero", "lateen"}

// unready is for how long snapshots are not: long enough for both agents to have seen what they are to expose.
const unready = 10 * time.Second

func newMixed(ctx context.Context, t *testing.T, moversOn string) *mixed {
	t.Helper()
	base := "node-" + rand.String(8)
	m := &mixed{T: t, nodes: map[string]string{}, agents: map[string]*fixture.Program{}}
	options := fixture.Options{Takes: takes}
	options.NodeLabels = map[string]string{"fleet": base}
	for _, name := range agents {
		m.nodes[name] = base + "-" + name
		options.Nodes = append(options.Nodes, node.Options{Name: m.nodes[name]})
	}
	options.Config = fmt.Sprintf(`{"loadAffinity":[{"nodeSelector":{"matchLabels":{%q:%q}}}]}`, corev1.LabelHostname, m.nodes[moversOn])
	var err error
	m.Env, err = fixture.New(ctx, plane, t.TempDir(), options)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	require.NoError(t, err)
	m.class = "class-" + m.Namespace
	require.NoError(t, m.StartDriver(ctx, m.class, csi.Options{ReadyDelay: unready}))
	m.backup, err = m.Backup(ctx, "nightly")
	require.NoError(t, err)
	m.restore, err = m.Restore(ctx, "nightly")
	require.NoError(t, err)
	// Velero's agent ends at its start if a pod of its node has no directory yet.
	_, err = testenv.Wait(ctx, m.Kube.CoreV1().Pods(m.Namespace), metav1.ListOptions{LabelSelector: "deploy=velero"}, testenv.Ready)
	require.NoError(t, err)
	m.agents["velero"], err = m.VeleroProgram(ctx, m.Nodes[0], "node-agent", "server", "--node-agent-configmap="+fixture.ConfigMap)
	require.NoError(t, err)
	m.agents["lateen"], err = m.Program(ctx, m.Nodes[1], "--cancel-grace=1s")
	require.NoError(t, err)
	m.leads(ctx)
	return m
}

// leads waits until Lateen's agent coordinates.
func (m *mixed) leads(ctx context.Context) {
	_, err := testenv.Wait(ctx, m.Kube.CoordinationV1().Leases(m.Namespace), testenv.Named(deploy.CoordinatorLease), func(lease *coordinationv1.Lease) bool {
		return strings.HasPrefix(ptr.Deref(lease.Spec.HolderIdentity, ""), m.nodes["lateen"])
	})
	require.NoError(m, err)
}

// accepts runs create while only one of the agents moves, and waits until it has accepted the transfer.
func (m *mixed) accepts(ctx context.Context, agent string, kind testenv.Kind, create func() (metav1.Object, error)) (name string) {
	other := m.agents[map[string]string{"velero": "lateen", "lateen": "velero"}[agent]]
	require.NoError(m, other.Signal(syscall.SIGSTOP))
	created, err := create()
	require.NoError(m, err)
	accepted, err := m.Transfers(kind).Wait(ctx, created.GetName(), testenv.In(testenv.Accepted))
	require.NoError(m, err)
	require.Equal(m, m.nodes[agent], accepted.Status.AcceptedByNode)
	require.NoError(m, other.Signal(syscall.SIGCONT))
	return created.GetName()
}

// transfers creates one of each kind for an agent, and returns their names. It accepts what its node or the other's standstill
// leaves to it.
func (m *mixed) transfers(ctx context.Context, agent string) map[testenv.Kind]string {
	app, err := m.Source(ctx, "app-of-"+agent, m.Nodes[slices.Index(agents, agent)])
	require.NoError(m, err)
	backup, err := m.PodVolumeBackup(ctx, m.backup, app, "data")
	require.NoError(m, err)
	restored, err := m.RestorePod(ctx, m.restore, "restored-of-"+agent, m.nodes[agent], testenv.EmptyDir("data"))
	require.NoError(m, err)
	restore, err := m.PodVolumeRestore(ctx, m.restore, restored, "data", "snapshot", m.Apps)
	require.NoError(m, err)
	_, err = m.CSIClaim(ctx, "of-"+agent, m.class)
	require.NoError(m, err)
	source, err := m.WaitClaim(ctx, m.Apps, "of-"+agent, testenv.Bound)
	require.NoError(m, err)
	target, err := m.TargetClaim(ctx, "target-of-"+agent, m.class)
	require.NoError(m, err)
	return map[testenv.Kind]string{
		testenv.PodVolumeBackup: backup.Name, testenv.PodVolumeRestore: restore.Name,
		testenv.DataUpload: m.accepts(ctx, agent, testenv.DataUpload, func() (metav1.Object, error) {
			snapshot, err := m.Snapshot(ctx, m.backup, source, m.class)
			require.NoError(m, err)
			return m.DataUpload(ctx, m.backup, source, velerov2alpha1.CSISnapshotSpec{
				VolumeSnapshot: snapshot.Name, SnapshotClass: m.class, Driver: m.Driver.Name(),
			})
		}),
		testenv.DataDownload: m.accepts(ctx, agent, testenv.DataDownload, func() (metav1.Object, error) {
			return m.DataDownload(ctx, m.restore, target, "snapshot")
		}),
	}
}

// Two agents that expose the same snapshot destroy it. Both live from New on, and the snapshots are not ready for a while.
func TestATransferIsExposedByTheAgentThatAcceptedItAndByNoOther(t *testing.T) {
	staged(t)
	for _, moversOn := range agents {
		t.Run("movers on the node of "+moversOn, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience) // only guards against hanging
			defer cancel()
			m := newMixed(ctx, t, moversOn)
			transfers := map[string]map[testenv.Kind]string{}
			for _, agent := range agents {
				transfers[agent] = m.transfers(ctx, agent)
			}
			for agent, kinds := range transfers {
				for kind, name := range kinds {
					ended, err := m.Transfers(kind).Wait(ctx, name, testenv.Settled)
					require.NoError(t, err, "%s of %s; velero: %s; lateen: %s", kind, agent, m.agents["velero"].Tail(), m.agents["lateen"].Tail())
					require.Equal(t, testenv.Completed, ended.Status.Phase, ended.Status.Message)
					node := m.nodes[agent] // of the pod
					if kind == testenv.DataUpload || kind == testenv.DataDownload {
						node = m.nodes[moversOn]
					}
					require.Equal(t, node, ended.Node(), "%s of %s", kind, agent)
					require.NoError(t, m.WaitPodGone(ctx, m.Namespace, name))
					require.NoError(t, m.WaitClaimGone(ctx, m.Namespace, name))
					m.exposedBy(ctx, agent, name)
				}
			}
			require.Empty(t, m.Driver.Handles(), "snapshots are left")
		})
	}
}

// exposedBy wants nobody else to have made anything for an upload.
func (m *mixed) exposedBy(ctx context.Context, agent, name string) {
	played, err := AgentNamed(agent)
	require.NoError(m, err)
	created, err := plane.Audit(ctx, cluster.Query{Verbs: []string{"create"}, Name: name})
	require.NoError(m, err)
	created = created.Where(func(r cluster.Record) bool {
		return r.Resource != "events" && strings.HasPrefix(r.User, "system:serviceaccount:"+m.Namespace)
	})
	require.NotEmpty(m, created)
	for _, record := range created {
		require.Equal(m, "system:serviceaccount:"+m.Namespace+":"+played.Account, record.User, record.String())
	}
	made, err := m.MoversMade(ctx, name)
	require.NoError(m, err)
	require.Equal(m, 1, made)
}
