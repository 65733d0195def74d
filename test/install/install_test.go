// Package install tries on a real control plane what operators install Lateen with.
package install

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/node"
	"github.com/lateen-project/lateen/test/testenv"
)

func TestWhatIsInstalledBacksUp(t *testing.T) {
	s := envOf(t, plane)
	name, root := "node-"+s.namespace, filepath.Join(t.TempDir(), "kubelet")
	s.node(name, root)

	out, warnings := s.install("--kubelet-root-dir="+root, "--wait", "--use-node-agent-windows")
	require.Empty(t, warnings)
	require.Contains(t, out, "DaemonSet node-agent-windows: no Windows node in the cluster, nothing to wait for\n")
	require.Contains(t, out, "Deployment velero: 1 of 1 pods ready\n")
	require.Contains(t, out, "DaemonSet node-agent: 1 of 1 pods ready\n")

	w, err := testenv.Open(fixture.Soon(t), plane.Admin(), s.namespace)
	require.NoError(t, err)
	moved := s.backUp(w, name)
	require.Equal(t, "velero", moved.Spec.ServiceAccountName)
	require.Contains(t, moved.Spec.Containers[0].Env, corev1.EnvVar{Name: "AWS_SHARED_CREDENTIALS_FILE", Value: "/credentials/cloud"})
}

// node adds a simulated node until the end of the test. Agents there are processes, and movers are played.
func (e *env) node(name, root string) {
	mover, err := node.NewStandIn(plane.Admin(), 50*time.Millisecond)
	require.NoError(e, err)
	runner := fixture.Agents{Plane: plane, Others: node.Movers{Runner: mover}}
	kubelet, err := node.Start(fixture.Soon(e.T), plane.Admin(), node.Options{Name: name, Root: root, Runner: runner})
	require.NoError(e, err)
	e.Cleanup(func() { // a node without a kubelet would keep every DaemonSet from being ready
		kubelet.Stop()
		require.NoError(e, e.kube.CoreV1().Nodes().Delete(context.WithoutCancel(e.Context()), name, metav1.DeleteOptions{}))
	})
}

// backUp backs up a volume on a node with Velero's program, and returns the mover as it was when Ready.
func (e *env) backUp(w *testenv.Env, nodeName string) *corev1.Pod {
	app, err := w.SourcePod(fixture.Soon(e.T), "app", nodeName, testenv.EmptyDir("data"))
	require.NoError(e, err)
	app, err = w.WaitPod(fixture.Soon(e.T), w.Apps, app.Name, testenv.Ready)
	require.NoError(e, err)
	backup, err := w.Backup(fixture.Soon(e.T), "nightly")
	require.NoError(e, err)
	created, err := w.PodVolumeBackup(fixture.Soon(e.T), backup, app, "data")
	require.NoError(e, err)
	mover, err := w.WaitPod(fixture.Soon(e.T), e.namespace, created.Name, testenv.Ready)
	require.NoError(e, err)
	require.Equal(e, "velero/velero:v1.18.3", mover.Spec.Containers[0].Image)
	ended, err := w.Transfers(testenv.PodVolumeBackup).Wait(fixture.Soon(e.T), created.Name, testenv.Settled)
	require.NoError(e, err)
	require.Equal(e, testenv.Completed, ended.Status.Phase, ended.Status.Message)
	return mover
}

func TestInstallingAgainChangesNothing(t *testing.T) {
	s := newEnv(t)
	install := func(args ...string) string {
		out, _ := s.install(append(args, "--restrict-movers", "--pod-policy=restricted")...)
		return out
	}
	objects := printed(t, install("-o=json", "--node-agent-pod-cpu-limit=1"))
	created := s.versions(objects)
	out := install()
	require.Equal(t, len(objects), strings.Count(out, "already exists, unchanged\n"))
	require.Equal(t, created, s.versions(objects))

	s.edit(types.JSONPatchType, `[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--log-level=debug"}]`)
	out = install("--apply")
	require.Contains(t, out, "DaemonSet node-agent keeps --log-level=debug\n")
	require.Contains(t, out, "DaemonSet node-agent changed\n")
	require.Contains(t, s.agents().Spec.Template.Spec.Containers[0].Args, "--log-level=debug")
	require.Equal(t, []corev1.ResourceName{corev1.ResourceMemory}, slices.Collect(maps.Keys(s.agents().Spec.Template.Spec.Containers[0].Resources.Limits)), "the first had a flag more")
	applied := s.versions(objects)
	out = install("--apply")
	require.Equal(t, applied, s.versions(objects))
	require.Equal(t, len(objects), strings.Count(out, " unchanged\n"), out)

	out = install("--apply", "--image=velero/velero:v1.18.2")
	require.Contains(t, out, "Deployment velero changed\n")
	require.Equal(t, len(objects)-1, strings.Count(out, " unchanged\n"), out)
	_, reported := s.fails("", append([]string{"install", "--apply", "--no-secret"}, usual(t)[:4]...)...)
	require.Contains(t, reported, "--no-secret would take Secret cloud-credentials from Velero's server")
}

// versions are those of objects, by kind and name.
func (e *env) versions(objects []unstructured.Unstructured) map[string]string {
	all := map[string]string{}
	for _, object := range objects {
		if object.GetKind() == "CustomResourceDefinition" {
			continue // shared with the other tests, which may change them
		}
		found, err := e.found(object)
		require.NoError(e, err)
		all[object.GetKind()+" "+object.GetName()] = version(e.T, found)
	}
	return all
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
		_, err := s.kube.CoreV1().ConfigMaps(s.namespace).Create(fixture.Soon(t), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}, metav1.CreateOptions{})
		require.NoError(t, err)
	}
	_, reported := s.fails("", append([]string{"install", "--node-agent-configmap=agents", "--backup-repository-configmap=repositories", "--repo-maintenance-job-configmap=missing"}, usual(t)...)...)
	for _, part := range []string{"loadConcurrency.globalConfig (line 2", "cacheLimitMB", "--repo-maintenance-job-configmap", "does not exist"} {
		require.Contains(t, reported, part)
	}
	accounts, err := s.kube.CoreV1().ServiceAccounts(s.namespace).List(fixture.Soon(t), metav1.ListOptions{LabelSelector: "component=velero"})
	require.NoError(t, err)
	require.Empty(t, accounts.Items, "nothing may be installed")

	_, reported = s.install("--node-agent-configmap=harmless")
	require.Contains(t, reported, "loadConcurency")
	require.Contains(t, reported, "no-such-class")
}

// plane is the one control plane of this test binary; TestMain sets it.
var plane *cluster.Cluster

// Definitions belong to the cluster: no test removes those that it did not create.
func TestMain(m *testing.M) { os.Exit(fixture.Main(m, &plane)) }

// repository makes a BackupRepository that Velero's server would maintain every hour.
func (e *env) repository(name, kind string) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "velero.io/v1", "kind": "BackupRepository",
		"metadata": map[string]any{"name": name, "namespace": e.namespace},
		"spec": map[string]any{
			"backupStorageLocation": "default", "maintenanceFrequency": "1h0m0s", "repositoryType": kind,
			"resticIdentifier": "", "volumeNamespace": "app",
		},
	}}
	require.NoError(e, testenv.Apply(fixture.Soon(e.T), plane.Admin(), object))
}

func (e *env) frequency() string {
	repositories := e.dynamic.Resource(schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: "backuprepositories"})
	found, err := repositories.Namespace(e.namespace).Get(fixture.Soon(e.T), "app-default-kopia-x", metav1.GetOptions{})
	require.NoError(e, err)
	frequency, _, _ := unstructured.NestedString(found.Object, "spec", "maintenanceFrequency")
	return frequency
}

func TestAgentsMaintainWhileTheServerWaitsForAYear(t *testing.T) {
	const ofAgents, ofServer = "--repo-maintenance-frequency=2h0m0s", "--default-repo-maintain-frequency=8760h0m0s"
	s := newEnv(t)
	args := func() (agents, server []string) {
		deployment := s.server()
		return s.agents().Spec.Template.Spec.Containers[0].Args, deployment.Spec.Template.Spec.Containers[0].Args
	}
	s.install()
	s.repository("app-default-kopia-x", "kopia")
	s.install("--repo-maintenance-frequency=2h") // does not change the agents
	require.Equal(t, "1h0m0s", s.frequency(), "or nobody would maintain it")

	s.install("--apply", "--repo-maintenance-frequency=2h")
	agents, server := args()
	require.Contains(t, agents, ofAgents)
	require.Contains(t, server, ofServer)

	out, _ := s.install("--apply", "--image=velero/velero:v1.18.2") // by somebody who does not know of it
	require.Contains(t, out, "DaemonSet node-agent keeps "+ofAgents+"\n")
	agents, server = args()
	require.Contains(t, agents, ofAgents)
	require.Contains(t, server, ofServer)
	require.Equal(t, "8760h0m0s", s.frequency(), "or the server would maintain it too")

	s.install("--apply", "--default-repo-maintain-frequency=3h") // and not the agents
	require.Equal(t, "3h0m0s", s.frequency(), "or nobody would maintain it")

	s.install("--apply", "--repo-maintenance-frequency=2h")
	s.install("--apply", "--repo-maintenance-frequency=0")
	agents, server = args()
	require.NotContains(t, agents, ofAgents)
	require.NotContains(t, server, ofServer)
	require.Equal(t, "1h0m0s", s.frequency(), "or nobody would maintain it")
}

func TestVersionsAndNamesComeFromTheCluster(t *testing.T) {
	s := newEnv(t)
	s.installVelero("--use-node-agent")
	out, _ := s.succeeds("", "version")
	require.Regexp(t, `\nAgents: velero/velero:v1\.18\.3, DaemonSet node-agent: \d+ of \d+ ready, \d+ updated\nVelero: velero/velero:v1\.18\.3\n$`, out)
	_, reported := s.fails("", "check")
	require.Equal(t, "lateen: 1 problem\n", reported) // no node runs the server, and both versions were tested

	w, err := testenv.Open(fixture.Soon(t), plane.Admin(), s.namespace)
	require.NoError(t, err)
	app, err := w.SourcePod(fixture.Soon(t), "app", "no-such-node", testenv.EmptyDir("data"))
	require.NoError(t, err)
	backup, err := w.Backup(fixture.Soon(t), "nightly")
	require.NoError(t, err)
	created, err := w.PodVolumeBackup(fixture.Soon(t), backup, app, "data")
	require.NoError(t, err)
	completed, err := fixture.Command(fixture.Soon(t), t, "lateen", "__complete", "explain", "--namespace="+s.namespace, "--kubeconfig="+s.kubeconfig, "pvb/").Output()
	require.NoError(t, err)
	require.Equal(t, "pvb/"+created.Name, strings.Split(string(completed), "\n")[0])
}

func TestPodSecurityOfTheAgent(t *testing.T) {
	kube, err := kubernetes.NewForConfig(plane.Admin())
	require.NoError(t, err)
	tests := map[string]struct {
		level   string
		options deploy.Options
		refused []string // what admission says against the pod; empty: it is let in
	}{
		"the default is let in where only restricted pods are": {level: "restricted"},
		"agents on Windows nodes are let in there, too":        {level: "restricted", options: deploy.Options{Windows: true}},
		"the paths of another kubelet root are the host's": {
			level: "baseline", options: deploy.Options{KubeletRoot: "/data/kubelet"}, refused: []string{"hostPath"},
		},
		"an agent that looks for itself is root and sees the host": {
			level: "restricted", options: deploy.Options{HostPath: true}, refused: []string{"hostPath", "runAsUser=0"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace, err := kube.CoreV1().Namespaces().Create(fixture.Soon(t), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
				GenerateName: "restricted-", Labels: map[string]string{"pod-security.kubernetes.io/enforce": test.level},
			}}, metav1.CreateOptions{})
			require.NoError(t, err)
			test.options.Namespace, test.options.Image = namespace.Name, "example.test/lateen:v1"
			objects := deploy.Objects(test.options)
			require.NoError(t, testenv.Apply(fixture.Soon(t), plane.Admin(), objects...))
			agents, ok := objects[len(objects)-1].(*appsv1.DaemonSet)
			require.True(t, ok)
			pod := &corev1.Pod{ObjectMeta: agents.Spec.Template.ObjectMeta, Spec: agents.Spec.Template.Spec}
			pod.Name = "agent"
			_, err = kube.CoreV1().Pods(namespace.Name).Create(fixture.Soon(t), pod, metav1.CreateOptions{})
			if len(test.refused) == 0 {
				require.NoError(t, err)
				return
			}
			for _, description := range test.refused {
				require.ErrorContains(t, err, description)
			}
		})
	}
}
