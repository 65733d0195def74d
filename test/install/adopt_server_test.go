package install

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// Velero's agents give new movers the image of their DaemonSet, which is Lateen's then. So none may wait for the roll-out.
func TestAnAdoptionStopsTheAgentsOfAllNodesAtOnce(t *testing.T) {
	s := envOf(t, plane)
	mover, err := node.NewStandIn(plane.Admin(), 50*time.Millisecond)
	require.NoError(t, err)
	s.installVelero("--use-node-agent")
	w, err := testenv.Open(soon(t), plane.Admin(), s.namespace)
	require.NoError(t, err)
	isLateens := func(pod *corev1.Pod) bool { return pod.Spec.ServiceAccountName == deploy.ServiceAccountName }
	nodes := []string{"first-" + s.namespace, "second-" + s.namespace}
	for _, name := range nodes {
		kubelet := s.node(name, filepath.Join(t.TempDir(), "kubelet"), mover)
		kubelet.Faults.Add(node.Fault{Match: isLateens, NeverStarts: true}) // a roll-out would stop at the first node
	}
	for _, name := range nodes {
		_, err := w.NodeAgentPod(soon(t), name, testenv.Ready)
		require.NoError(t, err)
	}
	s.adopt("--lateen-image=example.test/lateen:v1")
	require.NoError(t, testenv.WaitGone(soon(t), s.kube.CoreV1().Pods(s.namespace), metav1.ListOptions{LabelSelector: "name=node-agent"}, func(object runtime.Object) bool {
		pod, ok := object.(*corev1.Pod)
		return ok && !isLateens(pod)
	}))
}

// Whoever owns Velero's manifests, such as Helm or Argo CD, only overrides the image of the DaemonSet.
func TestVelerosDaemonSetRunsLateenIfOnlyItsImageChanges(t *testing.T) {
	s := envOf(t, plane)
	name, root := "node-"+s.namespace, filepath.Join(t.TempDir(), "kubelet")
	mover, err := node.NewStandIn(plane.Admin(), 50*time.Millisecond)
	require.NoError(t, err)
	s.installVelero("--use-node-agent", "--kubelet-root-dir="+root)
	s.edit(types.JSONPatchType, `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"example.test/lateen:v1"}]`)
	s.node(name, root, mover)
	w, err := testenv.Open(soon(t), plane.Admin(), s.namespace)
	require.NoError(t, err)
	agent, err := w.NodeAgentPod(soon(t), name, func(pod *corev1.Pod) bool {
		return testenv.Ready(pod) && pod.Spec.Containers[0].Image == "example.test/lateen:v1"
	})
	require.NoError(t, err)
	require.Equal(t, []string{"/velero"}, agent.Spec.Containers[0].Command)
	require.Equal(t, []string{"node-agent", "server"}, agent.Spec.Containers[0].Args[:2])
	require.True(t, objects.IsVelerosAgent(agent))

	s.startAgent(agent)
	transfer, moving := s.backUp(w, name)
	require.Equal(t, "velero/velero:v1.18.3", moving.Spec.Containers[0].Image)
	ended, err := w.Transfers(testenv.PodVolumeBackup).Wait(soon(t), transfer, testenv.Settled)
	require.NoError(t, err)
	require.Equal(t, testenv.Completed, ended.Status.Phase, ended.Status.Message)
	agent, err = s.kube.CoreV1().Pods(s.namespace).Get(soon(t), agent.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.False(t, objects.IsVelerosAgent(agent), "the coordinator would leave transfers to it")
}

// Maintenance jobs of adopted agents are as the server was told. Agents read Deployment velero alone; where the server has another
// name, as Helm gives it, they are told.
func TestAdoptedAgentsGetTheConfigurationOfTheServer(t *testing.T) {
	s := newEnv(t)
	s.installVelero("--use-node-agent")
	_, err := s.kube.CoreV1().ConfigMaps(s.namespace).Create(soon(t), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "jobs"}, Data: map[string]string{"global": `{"podResources":{"memoryLimit":"1Gi"}}`},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	deployments := s.kube.AppsV1().Deployments(s.namespace)
	server := s.server()
	container := &server.Spec.Template.Spec.Containers[0]
	container.Args = append(container.Args, "--repo-maintenance-job-configmap=jobs")
	server.ObjectMeta = metav1.ObjectMeta{Name: server.Name, Labels: server.Labels}
	server, err = deployments.Update(soon(t), server, metav1.UpdateOptions{})
	require.NoError(t, err)
	out, _ := s.succeeds("", "adopt", "--dry-run", "--lateen-image=example.test/lateen:v1")
	require.Contains(t, out, "Maintenance jobs use ConfigMap jobs, named by Deployment velero.\n")
	out, _ = s.succeeds("", "check")
	require.Contains(t, strings.Join(strings.Fields(out), " "), "repo-maintenance-job: ConfigMap "+s.namespace+"/jobs, named by Deployment velero No problems.")

	require.NoError(t, deployments.Delete(soon(t), server.Name, metav1.DeleteOptions{}))
	_, reported := s.fails("", "adopt", "--force", "--lateen-image=example.test/lateen:v1", "--pod-policy=restricted")
	require.Contains(t, reported, "find Velero's server for --pod-policy")
	server.ObjectMeta = metav1.ObjectMeta{Name: "backups-velero"}
	_, err = deployments.Create(soon(t), server, metav1.CreateOptions{})
	require.NoError(t, err)
	s.adopt("--lateen-image=example.test/lateen:v1")
	require.Equal(t, []string{
		"node-agent", "--features=", "--host-path=/host_pods", "--mover-image=velero/velero:v1.18.3", "--mover-service-account=velero", "--repo-maintenance-job-configmap=jobs",
	}, s.agents().Spec.Template.Spec.Containers[0].Args)
}
