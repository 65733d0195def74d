package install

import (
	"context"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestWhatIsInstalledBacksUp(t *testing.T) {
	s := envOf(t, plane)
	name, root := "node-"+s.namespace, filepath.Join(t.TempDir(), "kubelet")
	mover, err := node.NewStandIn(plane.Admin(), 50*time.Millisecond)
	require.NoError(t, err)
	s.node(name, root, mover)

	out, warnings := s.install("--kubelet-root-dir="+root, "--wait", "--use-node-agent-windows")
	require.Empty(t, warnings)
	require.Contains(t, out, "DaemonSet node-agent-windows: no Windows node in the cluster, nothing to wait for\n")
	require.Contains(t, out, "Deployment velero: 1 of 1 pods ready\n")
	require.Contains(t, out, "DaemonSet node-agent: 1 of 1 pods ready\n")

	w, err := testenv.Open(soon(t), plane.Admin(), s.namespace)
	require.NoError(t, err)
	pod, err := w.NodeAgentPod(soon(t), name, testenv.Ready)
	require.NoError(t, err)
	s.startAgent(pod)
	transfer, moving := s.backUp(w, name)
	require.Equal(t, "velero/velero:v1.18.3", moving.Spec.Containers[0].Image)
	require.Equal(t, "velero", moving.Spec.ServiceAccountName)
	require.Contains(t, moving.Spec.Containers[0].Env, corev1.EnvVar{Name: "AWS_SHARED_CREDENTIALS_FILE", Value: "/credentials/cloud"})
	ended, err := w.Transfers(testenv.PodVolumeBackup).Wait(soon(t), transfer, testenv.Settled)
	require.NoError(t, err)
	require.Equal(t, testenv.Completed, ended.Status.Phase, ended.Status.Message)
	s.uninstallsInTime()
}

// node adds a simulated node until the end of the test.
func (e *env) node(name, root string, mover *node.StandIn) *node.Node {
	kubelet, err := node.Start(soon(e.T), plane.Admin(), node.Options{Name: name, Root: root, Runner: node.Movers{Runner: mover}})
	require.NoError(e, err)
	e.Cleanup(func() { // a node without a kubelet would keep every DaemonSet from being ready
		kubelet.Stop()
		require.NoError(e, e.kube.CoreV1().Nodes().Delete(context.WithoutCancel(e.Context()), name, metav1.DeleteOptions{}))
	})
	return kubelet
}

// backUp starts the backup of a volume on a node, and returns its name and its mover, which is Ready.
func (e *env) backUp(w *testenv.Env, nodeName string) (transfer string, mover *corev1.Pod) {
	app, err := w.SourcePod(soon(e.T), "app", nodeName, testenv.EmptyDir("data"))
	require.NoError(e, err)
	app, err = w.WaitPod(soon(e.T), w.Apps, app.Name, testenv.Ready)
	require.NoError(e, err)
	backup, err := w.Backup(soon(e.T), "nightly")
	require.NoError(e, err)
	created, err := w.PodVolumeBackup(soon(e.T), backup, app, "data")
	require.NoError(e, err)
	mover, err = w.WaitPod(soon(e.T), e.namespace, created.Name, testenv.Ready)
	require.NoError(e, err)
	return created.Name, mover
}

// startAgent is what the kubelet would do with the agent's pod: it runs the program with the arguments and the
// environment of the pod, as its ServiceAccount, until the end of the test.
func (e *env) startAgent(pod *corev1.Pod) {
	own, err := plane.ServiceAccount(soon(e.T), e.namespace, pod.Spec.ServiceAccountName)
	require.NoError(e, err)
	kubeconfig := filepath.Join(e.TempDir(), "kubeconfig")
	require.NoError(e, plane.WriteKubeconfig(own, kubeconfig, e.namespace))
	args := append(pod.Spec.Containers[0].Args, "--kubeconfig="+kubeconfig, "--metrics-address=127.0.0.1:0")
	agent := program(e.Context(), e.T, "lateen", args...)
	agent.Cancel = func() error { return agent.Process.Signal(syscall.SIGTERM) }
	for _, variable := range pod.Spec.Containers[0].Env {
		value := variable.Value
		if variable.ValueFrom != nil {
			value = map[string]string{
				"spec.nodeName": pod.Spec.NodeName, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID),
			}[variable.ValueFrom.FieldRef.FieldPath]
		}
		require.NotEmpty(e, value, variable.Name)
		agent.Env = append(agent.Env, variable.Name+"="+value)
	}
	reported := &strings.Builder{}
	agent.Stderr = reported
	require.NoError(e, agent.Start())
	e.Cleanup(func() {
		_ = agent.Wait() // the end of the test has ended it
		if e.Failed() {
			e.Log(reported.String())
		}
	})
}

func TestInstallingAgainChangesNothing(t *testing.T) {
	s := newEnv(t)
	install := func(args ...string) string {
		out, _ := s.install(append(args, "--restrict-movers", "--pod-policy=restricted")...)
		return out
	}
	objects := printed(t, install("-o=json"))
	versions := func() map[string]string {
		all := map[string]string{}
		for _, object := range objects {
			if object.GetKind() == "CustomResourceDefinition" {
				continue // shared with the other tests, which may change them
			}
			found, err := s.found(object)
			require.NoError(t, err)
			all[object.GetKind()+" "+object.GetName()] = version(t, found)
		}
		return all
	}
	created := versions()
	out := install()
	require.Equal(t, len(objects), strings.Count(out, "already exists, unchanged\n"))
	require.Equal(t, created, versions())

	install("--apply") // whose fields these are is written down once
	applied := versions()
	out = install("--apply")
	require.Equal(t, applied, versions())
	require.Equal(t, len(objects), strings.Count(out, " unchanged\n"), out)

	out = install("--apply", "--image=velero/velero:v1.18.2")
	require.Contains(t, out, "Deployment velero changed\n")
	require.Equal(t, len(objects)-1, strings.Count(out, " unchanged\n"), out)
}

// version changes with whatever is written to an object. Controllers write to workloads, policies and flow schemas meanwhile, so
// of these it is all but their status, with what is known of the fields that Lateen has written. The API server may change the time
// of an apply that changes nothing, if a controller writes the status at the same time.
func version(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	if !slices.Contains([]string{"Deployment", "DaemonSet", "ValidatingAdmissionPolicy", "FlowSchema", "PriorityLevelConfiguration"}, object.GetKind()) {
		return object.GetResourceVersion()
	}
	own := object.DeepCopy()
	delete(own.Object, "status")
	own.SetResourceVersion("")
	fields := slices.DeleteFunc(own.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool { return entry.Manager != "lateen" })
	for index := range fields {
		fields[index].Time = nil
	}
	own.SetManagedFields(fields)
	text, err := own.MarshalJSON()
	require.NoError(t, err)
	return string(text)
}

func TestConfigMapsThatAreNamed(t *testing.T) {
	s := newEnv(t)
	s.createNamespace(s.namespace)
	for name, data := range map[string]map[string]string{
		"agents":       {"a": "{\n\"loadConcurrency\": {\"globalConfig\": \"3\"}}"},
		"repositories": {"kopia": `{"cacheLimitMB": "x"}`},
		"harmless":     {"a": `{"loadConcurency": {}, "priorityClassName": "no-such-class"}`},
	} {
		_, err := s.kube.CoreV1().ConfigMaps(s.namespace).Create(soon(t), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, reported := s.fails("", append([]string{"install", "--node-agent-configmap=agents", "--backup-repository-configmap=repositories", "--repo-maintenance-job-configmap=missing"}, usual(t)...)...)
	for _, part := range []string{"loadConcurrency.globalConfig (line 2", "cacheLimitMB", "--repo-maintenance-job-configmap", "does not exist"} {
		require.Contains(t, reported, part)
	}
	accounts, err := s.kube.CoreV1().ServiceAccounts(s.namespace).List(soon(t), metav1.ListOptions{LabelSelector: "component=velero"})
	require.NoError(t, err)
	require.Empty(t, accounts.Items, "nothing may be installed")

	_, reported = s.install("--node-agent-configmap=harmless")
	require.Contains(t, reported, "loadConcurency")
	require.Contains(t, reported, "no-such-class")
}
