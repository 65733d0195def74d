package integration

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	velerov1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"

	"github.com/lateen-project/lateen/cmd/lateen/agent"
	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// fleet is an environment of several nodes, of which environment.node is the first.
type fleet struct {
	*env
	nodes  []*node.Node
	labels map[string]string // of all of them and of no other
}

// newFleet builds one for a test that runs beside others. A source pod is on the first node.
func newFleet(t *testing.T, takes time.Duration, count int, changes ...func(*node.Options)) *fleet {
	t.Helper()
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	name := "node-" + rand.String(nodeSuffix)
	kubelet := filepath.Join(t.TempDir(), "kubelet")
	labels := map[string]string{"fleet": name}
	all, windows := make([]node.Options, count), false
	for i := range all {
		all[i] = node.Options{Name: name + "-" + string(rune('a'+i)), Root: kubelet, Labels: labels}
		for _, change := range changes {
			change(&all[i])
		}
		windows = windows || all[i].Labels[corev1.LabelOSStable] == string(corev1.Windows)
	}
	w, err := testenv.New(ctx, plane.Admin(), testenv.Options{NodeLabels: labels, KubeletRoot: kubelet, Windows: windows})
	require.NoError(t, err)
	require.NoError(t, testenv.Apply(ctx, plane.Admin(), deploy.RBAC(w.Namespace)...))
	f := &fleet{env: &env{T: t, Env: w}, labels: labels}
	f.mover, err = node.NewStandIn(plane.Admin(), takes)
	require.NoError(t, err)
	for _, options := range all {
		if options.Runner == nil {
			options.Runner = node.Movers{Runner: f.mover}
		}
		started, err := node.Start(ctx, plane.Admin(), options)
		require.NoError(t, err)
		t.Cleanup(started.Stop)
		f.nodes = append(f.nodes, started)
	}
	f.node = f.nodes[0]
	t.Cleanup(f.checkRequests)
	for _, n := range f.nodes {
		_, err = w.NodeAgentPod(ctx, n.Name(), testenv.Ready)
		require.NoError(t, err)
	}
	f.source = f.sourceOn(f.node)
	f.backup, err = w.Backup(ctx, "nightly")
	require.NoError(t, err)
	return f
}

// sourceOn is a pod on a node whose volume can be backed up.
func (f *fleet) sourceOn(n *node.Node) *corev1.Pod {
	f.Helper()
	pod, err := f.SourcePod(f.soon(), "app-on-"+n.Name(), n.Name(), testenv.EmptyDir("data"))
	require.NoError(f, err)
	pod, err = f.WaitPod(f.soon(), f.Apps, pod.Name, testenv.Ready)
	require.NoError(f, err)
	f.fill(f.soon(), n, pod)
	return pod
}

// transferOf creates a PodVolumeBackup of a pod's volume.
func (f *fleet) transferOf(source *corev1.Pod) string {
	f.Helper()
	created, err := f.PodVolumeBackup(f.soon(), f.backup, source, "data")
	require.NoError(f, err)
	return created.Name
}

// on has an agent run on a node.
func on(n *node.Node) func(*agent.Options) {
	return func(options *agent.Options) { options.Flags.NodeName = n.Name() }
}

// leads waits until the agent of a node is the coordinator.
func (s *env) leads(n *node.Node) {
	s.Helper()
	leases, err := s.Kube.CoordinationV1().Leases(s.Namespace).Watch(s.soon(), metav1.ListOptions{})
	require.NoError(s, err)
	defer leases.Stop()
	for change := range leases.ResultChan() {
		lease, ok := change.Object.(*coordinationv1.Lease)
		if ok && strings.HasPrefix(ptr.Deref(lease.Spec.HolderIdentity, ""), n.Name()+"_") {
			return
		}
	}
	require.Failf(s, "another agent coordinates", "not that of %s", n.Name())
}

// loseAgents takes the DaemonSet's pods away, and with them whoever stood in the way of a stand-in.
func (s *env) loseAgents() {
	s.Helper()
	require.NoError(s, s.Kube.AppsV1().DaemonSets(s.Namespace).Delete(s.soon(), "node-agent", metav1.DeleteOptions{}))
}

// elsewhere makes a PodVolumeBackup one of a node that has no agent.
func elsewhere(backup *velerov1.PodVolumeBackup) { backup.Spec.Node = "node-without-agent" }

// shortTerm is for agents of which one dies without giving its Lease back.
func shortTerm(options *agent.Options) {
	options.Election.Lease, options.Election.Renew = 5*time.Second, 4*time.Second
}

// shortAbsence has the coordinator stand in for an agent after a second.
func shortAbsence(options *agent.Options) { options.AgentTimeout = time.Second }

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

// pushes creates a pod of a priority class on whichever node of the fleet, and returns its name.
func (f *fleet) pushes(name, class, cpu string) string {
	f.Helper()
	_, err := f.Kube.CoreV1().Pods(f.Apps).Create(f.soon(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeSelector: f.labels, PriorityClassName: class, TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: quantity(cpu)},
			}}},
		},
	}, metav1.CreateOptions{})
	require.NoError(f, err)
	return name
}
