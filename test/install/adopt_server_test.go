package install

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

// namesMaintenance gives Velero's Deployment the flag that only the server has in Velero.
const namesMaintenance = `[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--repo-maintenance-job-configmap=jobs"}]`

// After an adoption, maintenance jobs are as the server was told.
func TestAdoptedAgentsMaintainAsTheServerIsConfigured(t *testing.T) {
	s := newEnv(t)
	s.installVelero()
	s.maintainedBy("backup-jobs-" + s.namespace)
	out, _ := s.succeeds("", "adopt", "--force", "--lateen-image=example.test/lateen:v1")
	require.Contains(t, out, "Maintenance jobs use ConfigMap jobs, named by Deployment velero.\n")
	out, _ = s.succeeds("", "check")
	require.Contains(t, strings.Join(strings.Fields(out), " "), "repo-maintenance-job: ConfigMap "+s.namespace+"/jobs, named by Deployment velero No problems.")

	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience) // only guards against hanging
	defer cancel()
	s.startAdopted(ctx)
	s.repository("app-default-kopia-x", "kopia")
	repositories := schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: "backuprepositories"}
	_, err := s.dynamic.Resource(repositories).Namespace(s.namespace).Patch(ctx, "app-default-kopia-x", types.MergePatchType, []byte(`{"status":{"phase":"Ready"}}`), metav1.PatchOptions{})
	require.NoError(t, err)

	pod := s.firstJob(ctx).Spec.Template
	require.Equal(t, "backup-jobs-"+s.namespace, pod.Spec.PriorityClassName)
	require.Equal(t, "1Gi", pod.Spec.Containers[0].Resources.Limits.Memory().String())
	require.Equal(t, "storage", pod.Labels["team"])
}

func TestAVeleroThatWasNotTriedIsWarnedOf(t *testing.T) {
	const newer = "Velero v1.99.0 is newer than 1.18, the newest version tested with Lateen; use a newer Lateen, or test a backup and a restore first"
	s := newEnv(t)
	s.installVelero()
	out, reported := s.succeeds("", "check")
	require.Contains(t, out, "velero: velero/velero:v1.18.3 (Lateen is tested with Velero 1.17, 1.18)\n")
	require.Regexp(t, `kubernetes: v1\.\d+\.\d+ \(Lateen is tested with Kubernetes [0-9., ]+\)\n`, out)
	require.Empty(t, reported)

	patch := `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"velero/velero:v1.99.0"}]`
	_, err := s.kube.AppsV1().Deployments(s.namespace).Patch(soon(t), deploy.VeleroDeployment, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
	_, reported, err = s.run("", "check")
	require.NoError(t, err, "it is no Problem")
	require.Equal(t, "Warning: "+newer+"\n", reported)

	s.adopt("--lateen-image=example.test/lateen:v1")
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience) // only guards against hanging
	defer cancel()
	agent := s.startAdopted(ctx)
	event, err := testenv.Wait(ctx, s.kube.CoreV1().Events(s.namespace), metav1.ListOptions{FieldSelector: "reason=VeleroNotTried"},
		func(*corev1.Event) bool { return true })
	require.NoError(t, err)
	require.Equal(t, newer, event.Message)
	require.Equal(t, corev1.EventTypeWarning, event.Type)
	require.Equal(t, agent.Name, event.InvolvedObject.Name)
}

// startAdopted starts a node, and the agent that its pod of the adopted DaemonSet stands for.
func (s *env) startAdopted(ctx context.Context) *corev1.Pod {
	name := "node-" + s.namespace
	kubelet, err := node.Start(ctx, plane.Admin(), node.Options{Name: name, Root: filepath.Join(s.TempDir(), "kubelet")})
	require.NoError(s, err)
	s.Cleanup(func() { // a node that nobody plays any more would keep every DaemonSet from being ready
		kubelet.Stop()
		require.NoError(s, s.kube.CoreV1().Nodes().Delete(context.WithoutCancel(s.Context()), name, metav1.DeleteOptions{}))
	})
	w, err := testenv.Open(ctx, plane.Admin(), s.namespace)
	require.NoError(s, err)
	agent, err := w.NodeAgentPod(ctx, name, func(pod *corev1.Pod) bool {
		return testenv.Ready(pod) && pod.Spec.ServiceAccountName == deploy.ServiceAccountName
	})
	require.NoError(s, err)
	s.startAgent(agent)
	return agent
}

// Velero's agents give new movers the image of their DaemonSet, which is Lateen's then. So none may wait for the roll-out.
func TestAnAdoptionStopsTheAgentsOfAllNodesAtOnce(t *testing.T) {
	s := newEnv(t)
	mover, err := node.NewStandIn(plane.Admin(), 50*time.Millisecond)
	require.NoError(t, err)
	s.installVelero()
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
	s := newEnv(t)
	name, root := "node-"+s.namespace, filepath.Join(t.TempDir(), "kubelet")
	mover, err := node.NewStandIn(plane.Admin(), 50*time.Millisecond)
	require.NoError(t, err)
	s.installVelero("--kubelet-root-dir=" + root)
	patch := `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"example.test/lateen:v1"}]`
	_, err = s.kube.AppsV1().DaemonSets(s.namespace).Patch(soon(t), deploy.DaemonSetName, types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
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

// Agents read Deployment velero alone; where the server has another name, as Helm gives it, they are told.
func TestAdoptedAgentsGetTheConfigurationOfAServerOfAnotherName(t *testing.T) {
	s := newEnv(t)
	s.installVelero()
	s.maintainedBy("")
	deployments := s.kube.AppsV1().Deployments(s.namespace)
	server, err := deployments.Get(soon(t), deploy.VeleroDeployment, metav1.GetOptions{})
	require.NoError(t, err)
	require.NoError(t, deployments.Delete(soon(t), server.Name, metav1.DeleteOptions{}))
	server.ObjectMeta = metav1.ObjectMeta{Name: "backups-velero"}
	_, err = deployments.Create(soon(t), server, metav1.CreateOptions{})
	require.NoError(t, err)
	s.adopt("--lateen-image=example.test/lateen:v1")
	require.Equal(t, []string{
		"node-agent", "--features=", "--host-path=/host_pods", "--mover-image=velero/velero:v1.18.3", "--mover-service-account=velero", "--repo-maintenance-job-configmap=jobs",
	}, s.agents().Spec.Template.Spec.Containers[0].Args)
}

// maintainedBy configures maintenance jobs as users of Velero do: in a ConfigMap that the server's Deployment names.
func (s *env) maintainedBy(class string) {
	if class != "" {
		_, err := s.kube.SchedulingV1().PriorityClasses().Create(soon(s.T), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Value: 10}, metav1.CreateOptions{})
		require.NoError(s, err)
		s.Cleanup(func() {
			require.NoError(s, s.kube.SchedulingV1().PriorityClasses().Delete(context.WithoutCancel(s.Context()), class, metav1.DeleteOptions{}))
		})
	}
	_, err := s.kube.CoreV1().ConfigMaps(s.namespace).Create(soon(s.T), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "jobs"},
		Data:       map[string]string{"global": `{"priorityClassName":"` + class + `","podLabels":{"team":"storage"},"podResources":{"memoryLimit":"1Gi"}}`},
	}, metav1.CreateOptions{})
	require.NoError(s, err)
	_, err = s.kube.AppsV1().Deployments(s.namespace).Patch(soon(s.T), deploy.VeleroDeployment, types.JSONPatchType, []byte(namesMaintenance), metav1.PatchOptions{})
	require.NoError(s, err)
}

// firstJob is the first of the namespace.
func (s *env) firstJob(ctx context.Context) *batchv1.Job {
	job, err := testenv.Wait(ctx, s.kube.BatchV1().Jobs(s.namespace), metav1.ListOptions{}, func(*batchv1.Job) bool { return true })
	require.NoError(s, err)
	return job
}
