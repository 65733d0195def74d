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
	s := newEnv(t)
	name, root := "node-"+s.namespace, filepath.Join(t.TempDir(), "kubelet")
	mover, err := node.NewStandIn(plane.Admin(), 50*time.Millisecond)
	require.NoError(t, err)
	s.node(name, root, mover)

	out, warnings := s.install("--kubelet-root-dir="+root, "--wait")
	require.Empty(t, warnings)
	require.Contains(t, out, "Deployment velero: 1 of 1 pods ready\n")
	require.Regexp(t, `DaemonSet node-agent: (\d+) of \d+ pods ready\n$`, out)

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
func (s *env) node(name, root string, mover *node.StandIn) *node.Node {
	kubelet, err := node.Start(soon(s.T), plane.Admin(), node.Options{Name: name, Root: root, Runner: node.Movers{Runner: mover}})
	require.NoError(s, err)
	s.Cleanup(func() { // a node without a kubelet would keep every DaemonSet from being ready
		kubelet.Stop()
		require.NoError(s, s.kube.CoreV1().Nodes().Delete(context.WithoutCancel(s.Context()), name, metav1.DeleteOptions{}))
	})
	return kubelet
}

// backUp starts the backup of a volume on a node, and returns its name and its mover, which is Ready.
func (s *env) backUp(w *testenv.Env, nodeName string) (transfer string, mover *corev1.Pod) {
	app, err := w.SourcePod(soon(s.T), "app", nodeName, testenv.EmptyDir("data"))
	require.NoError(s, err)
	app, err = w.WaitPod(soon(s.T), w.Apps, app.Name, testenv.Ready)
	require.NoError(s, err)
	backup, err := w.Backup(soon(s.T), "nightly")
	require.NoError(s, err)
	created, err := w.PodVolumeBackup(soon(s.T), backup, app, "data")
	require.NoError(s, err)
	mover, err = w.WaitPod(soon(s.T), s.namespace, created.Name, testenv.Ready)
	require.NoError(s, err)
	return created.Name, mover
}

// startAgent is what the kubelet would do with the agent's pod: it runs the program with the arguments and the
// environment of the pod, as its ServiceAccount, until stop or the end of the test.
func (s *env) startAgent(pod *corev1.Pod) (stop func()) {
	own, err := plane.ServiceAccount(soon(s.T), s.namespace, pod.Spec.ServiceAccountName)
	require.NoError(s, err)
	kubeconfig := filepath.Join(s.TempDir(), "kubeconfig")
	require.NoError(s, plane.WriteKubeconfig(own, kubeconfig, s.namespace))
	args := append(pod.Spec.Containers[0].Args, "--kubeconfig="+kubeconfig, "--metrics-address=127.0.0.1:0")
	ctx, stop := context.WithCancel(s.Context())
	agent := program(ctx, s.T, "lateen", args...)
	agent.Cancel = func() error { return agent.Process.Signal(syscall.SIGTERM) }
	for _, variable := range pod.Spec.Containers[0].Env {
		value := variable.Value
		if variable.ValueFrom != nil {
			value = map[string]string{
				"spec.nodeName": pod.Spec.NodeName, "metadata.namespace": pod.Namespace, "metadata.uid": string(pod.UID),
			}[variable.ValueFrom.FieldRef.FieldPath]
		}
		require.NotEmpty(s, value, variable.Name)
		agent.Env = append(agent.Env, variable.Name+"="+value)
	}
	reported := &strings.Builder{}
	agent.Stderr = reported
	require.NoError(s, agent.Start())
	s.Cleanup(func() {
		_ = agent.Wait() // the end of the test has ended it
		if s.Failed() {
			s.Log(reported.String())
		}
	})
	return stop
}

func TestInstallingAgainChangesNothing(t *testing.T) {
	s := newEnv(t)
	install := func(args ...string) string {
		out, _ := s.install(append(args, "--restrict-movers", "--pod-policy=restricted")...)
		return out
	}
	install()
	objects := printed(t, install("--dry-run", "-o=json"))
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
// of these it is all but their status, with what is known of the fields that Lateen has written, and when.
func version(t *testing.T, object *unstructured.Unstructured) string {
	t.Helper()
	if !slices.Contains([]string{"Deployment", "DaemonSet", "ValidatingAdmissionPolicy", "FlowSchema", "PriorityLevelConfiguration"}, object.GetKind()) {
		return object.GetResourceVersion()
	}
	own := object.DeepCopy()
	delete(own.Object, "status")
	own.SetResourceVersion("")
	own.SetManagedFields(slices.DeleteFunc(own.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool { return entry.Manager != "lateen" }))
	text, err := own.MarshalJSON()
	require.NoError(t, err)
	return string(text)
}

func TestAClassThatIsNotThereIsAWarning(t *testing.T) {
	s := newEnv(t)
	_, warnings := s.install("--server-priority-class-name=no-such-server", "--node-agent-priority-class-name=no-such-agent")
	require.Contains(t, warnings, "--server-priority-class-name: PriorityClass no-such-server does not exist")
	require.Contains(t, warnings, "--node-agent-priority-class-name: PriorityClass no-such-agent does not exist")
	server := s.server()
	require.Equal(t, "no-such-server", server.Spec.Template.Spec.PriorityClassName)
	agents := s.agents()
	require.Equal(t, "no-such-agent", agents.Spec.Template.Spec.PriorityClassName)
}

func TestConfigMapsThatAreNamed(t *testing.T) {
	tests := map[string]struct {
		data  map[string]string // of the ConfigMap; nil: there is none
		flag  string
		warns string
		fails []string // words of the error; empty: the installation goes on
	}{
		"are taken if they are good": {flag: "node-agent-configmap", data: map[string]string{"a": `{"priorityClassName": ""}`}},
		"have to be there":           {flag: "repo-maintenance-job-configmap", fails: []string{"--repo-maintenance-job-configmap", "does not exist"}},
		"may have fields that nobody knows": {
			flag: "node-agent-configmap", data: map[string]string{"a": `{"loadConcurency": {}}`}, warns: "loadConcurency",
		},
		"have to be of use": {
			flag: "node-agent-configmap", data: map[string]string{"a": "{\n\"loadConcurrency\": {\"globalConfig\": \"3\"}}"},
			fails: []string{"loadConcurrency.globalConfig (line 2"},
		},
		"may name what the cluster has not got yet": {
			flag: "node-agent-configmap", data: map[string]string{"a": `{"priorityClassName": "no-such-class"}`}, warns: "no-such-class",
		},
		"of maintenance jobs have to be of use too": {
			flag: "repo-maintenance-job-configmap", data: map[string]string{"global": `{"keepLatestMaintenanceJobs": "x"}`}, fails: []string{"keepLatestMaintenanceJobs"},
		},
		"of the maintenance of one repository are looked at as well": {
			flag: "repo-maintenance-job-configmap", data: map[string]string{"app-default-kopia": `{"podResources": {"cpuLimit": "x"}}`}, fails: []string{"podResources.cpuLimit"},
		},
		"of repositories have to be of use too": {
			flag: "backup-repository-configmap", data: map[string]string{"kopia": `{"cacheLimitMB": "x"}`}, fails: []string{"cacheLimitMB"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t)
			s.createNamespace(s.namespace)
			if test.data != nil {
				_, err := s.kube.CoreV1().ConfigMaps(s.namespace).Create(soon(t), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "named"}, Data: test.data}, metav1.CreateOptions{})
				require.NoError(t, err)
			}
			_, reported, err := s.run("", append([]string{"install", "--" + test.flag + "=named"}, usual(t)...)...)
			require.Contains(t, reported, test.warns)
			if len(test.fails) == 0 {
				require.NoError(t, err, reported)
				return
			}
			require.Error(t, err)
			for _, description := range test.fails {
				require.Contains(t, reported, description)
			}
			accounts, err := s.kube.CoreV1().ServiceAccounts(s.namespace).List(soon(t), metav1.ListOptions{LabelSelector: "component=velero"})
			require.NoError(t, err)
			require.Empty(t, accounts.Items, "nothing may be installed")
		})
	}
}

func TestTheDaemonSetOfVelerosOwnAgentsIsNotOverwritten(t *testing.T) {
	s := newEnv(t)
	s.define()
	_, err := testenv.New(soon(t), plane.Admin(), testenv.Options{Namespace: s.namespace})
	require.NoError(t, err)
	_, reported := s.fails("", append([]string{"install", "--apply"}, usual(t)...)...)
	require.Contains(t, reported, "DaemonSet node-agent: it belongs to Velero's agents; replace them with lateen adopt")
	agents := s.agents()
	require.Equal(t, []string{"/velero"}, agents.Spec.Template.Spec.Containers[0].Command)
	require.Equal(t, "velero/velero:v1.18.3", agents.Spec.Template.Spec.Containers[0].Image)
}
