package install

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

// installVelero is what `velero install` does with more flags than it must have.
func (e *env) installVelero(args ...string) {
	for _, object := range e.velerosObjects(args...) {
		require.NoError(e, testenv.Apply(fixture.Soon(e.T), plane.Admin(), &object))
	}
}

// velerosObjects are those that `velero install` would create, without the definitions.
func (e *env) velerosObjects(args ...string) []unstructured.Unstructured {
	ctx, cancel := context.WithTimeout(e.Context(), testenv.Patience) // a process, and what it prints made
	defer cancel()
	all := append(velero(e.T), "--image=velero/velero:v1.18.3", "--dry-run", "--output=json",
		"--namespace="+e.namespace, "--kubeconfig="+e.kubeconfig)
	text, err := fixture.Command(ctx, e.T, "velero", append(append([]string{"install"}, all...), args...)...).Output()
	require.NoError(e, err)
	return slices.DeleteFunc(printed(e.T, string(text)), func(object unstructured.Unstructured) bool {
		return object.GetKind() == "CustomResourceDefinition"
	})
}

func (e *env) agents() *appsv1.DaemonSet { return e.daemonSet(api.DaemonSetName) }

func (e *env) daemonSet(name string) *appsv1.DaemonSet {
	agents, err := e.kube.AppsV1().DaemonSets(e.namespace).Get(fixture.Soon(e.T), name, metav1.GetOptions{})
	require.NoError(e, err)
	return agents
}

// edit changes the DaemonSet of the agents.
func (e *env) edit(kind types.PatchType, patch string) {
	_, err := e.kube.AppsV1().DaemonSets(e.namespace).Patch(fixture.Soon(e.T), api.DaemonSetName, kind, []byte(patch), metav1.PatchOptions{})
	require.NoError(e, err)
}

func (e *env) server() *appsv1.Deployment {
	server, err := e.kube.AppsV1().Deployments(e.namespace).Get(fixture.Soon(e.T), api.VeleroDeployment, metav1.GetOptions{})
	require.NoError(e, err)
	return server
}

func (e *env) createNamespace(name string) {
	_, err := e.kube.CoreV1().Namespaces().Create(fixture.Soon(e.T), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(e, err)
}

// adopt runs `lateen adopt`, which has nothing to warn of.
func (e *env) adopt(args ...string) {
	_, reported := e.succeeds("", append([]string{"adopt", "--force"}, args...)...)
	require.Empty(e, reported)
}

// manifests are objects as they are sent to an API server.
func manifests(t *testing.T, objects ...runtime.Object) (all []unstructured.Unstructured) {
	t.Helper()
	for _, object := range objects {
		manifest, err := deploy.Manifest(object)
		require.NoError(t, err)
		all = append(all, *manifest)
	}
	return all
}

// requireThere finds objects of the package deploy in the cluster.
func (e *env) requireThere(objects ...runtime.Object) {
	for _, manifest := range manifests(e.T, objects...) {
		_, err := e.found(manifest)
		require.NoError(e, err, "%s %s", manifest.GetKind(), manifest.GetName())
	}
}

// requireGone finds none of them.
func (e *env) requireGone(objects ...runtime.Object) {
	for _, manifest := range manifests(e.T, objects...) {
		_, err := e.found(manifest)
		require.True(e, apierrors.IsNotFound(err), "%s %s is left: %v", manifest.GetKind(), manifest.GetName(), err)
	}
}

// asJSON is what an undo has to put back. The API server counts the templates of a DaemonSet in an annotation.
func asJSON(t *testing.T, agents *appsv1.DaemonSet) string {
	t.Helper()
	own := agents.DeepCopy()
	delete(own.Annotations, appsv1.DeprecatedTemplateGeneration)
	text, err := json.Marshal([]any{own.Spec, own.Labels, own.Annotations})
	require.NoError(t, err)
	return string(text)
}

// requireAdopted compares agents with those of Velero: program, ServiceAccount and probes are Lateen's, and all else is as it was.
func requireAdopted(t *testing.T, before, adopted *appsv1.DaemonSet) {
	t.Helper()
	want, now := before.Spec.Template.DeepCopy(), adopted.Spec.Template.Spec.Containers[0]
	container := &want.Spec.Containers[0]
	container.Image, container.Command = "example.test/lateen:v1", nil
	container.Args = append(append([]string{"node-agent"}, container.Args[2:]...), "--host-path=/host_pods")
	container.StartupProbe, container.LivenessProbe, container.ReadinessProbe = now.StartupProbe, now.LivenessProbe, now.ReadinessProbe
	podUID := &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"}}
	container.Env = append(container.Env, corev1.EnvVar{Name: "POD_UID", ValueFrom: podUID})
	want.Spec.ServiceAccountName, want.Spec.DeprecatedServiceAccount = "lateen", "lateen"
	require.Equal(t, *want, adopted.Spec.Template)
	require.Equal(t, before.Spec.Selector, adopted.Spec.Selector)
	for probe, path := range map[*corev1.Probe]string{now.StartupProbe: deploy.LivePath, now.LivenessProbe: deploy.LivePath, now.ReadinessProbe: deploy.ReadyPath} {
		require.Equal(t, path, probe.HTTPGet.Path)
	}
}

func TestAdoptedAgentsKeepAllButTheirProgram(t *testing.T) {
	const (
		toV1          = "--lateen-image=example.test/lateen:v1"
		ofWindowsToo  = "Warning: DaemonSet node-agent-windows is adopted too: --lateen-image must also support Windows nodes\n"
		losesArgument = "Warning: DaemonSet node-agent loses arguments that Velero's agents do not support: --repo-maintenance-frequency=1h\n" +
			"Warning: Velero's server maintains repositories again, each as often as its spec.maintenanceFrequency says: set those of a year back, see docs/maintenance.md\n"
	)
	s := newEnv(t)
	s.installVelero("--use-node-agent", "--use-node-agent-windows", "--features=EnableCSI", "--pod-labels=team=storage",
		"--node-agent-priority-class-name=agents", "--kubelet-root-dir=/data/kubelet")
	s.edit(types.MergePatchType, `{"metadata":{"annotations":{"team":"storage"}},"spec":{"template":{"spec":{"nodeSelector":{"disk":"ssd"},"tolerations":[{"operator":"Exists"}]}}}}`)
	linux, windows, server := s.agents(), s.daemonSet(api.WindowsDaemonSetName), s.server()
	accounts, registry := s.kube.CoreV1().ServiceAccounts(s.namespace), []byte(`{"imagePullSecrets":[{"name":"registry"}]}`)
	_, err := accounts.Patch(fixture.Soon(t), linux.Spec.Template.Spec.ServiceAccountName, types.MergePatchType, registry, metav1.PatchOptions{})
	require.NoError(t, err)

	out, err := s.helm("install", "lateen", chart, "--set=image.repository=example.test/lateen")
	require.Error(t, err)
	require.Contains(t, out, `DaemonSet "node-agent" in namespace "`+s.namespace+`" exists and cannot be imported`)
	_, reported := s.fails("", append([]string{"install", "--apply"}, usual(t)...)...)
	require.Contains(t, reported, "DaemonSet node-agent: it belongs to Velero's agents; replace them with lateen adopt")
	out, reported = s.fails("n\n", "adopt", toV1)
	require.Contains(t, reported, "nothing changed")
	for _, part := range []string{"/node-agent, spec.template:\n", "/node-agent-windows, spec.template:\n", "\n-    image: velero/velero:v1.18.3\n", "\n+    image: example.test/lateen:v1\n"} {
		require.Contains(t, out, part)
	}
	require.Equal(t, asJSON(t, linux), asJSON(t, s.agents()), "neither of the three has changed them")
	require.Equal(t, server.Generation, s.server().Generation)

	_, reported = s.succeeds("", "adopt", "--force", toV1)
	require.Equal(t, ofWindowsToo, reported)
	requireAdopted(t, linux, s.agents())
	requireAdopted(t, windows, s.daemonSet(api.WindowsDaemonSetName))
	account, err := accounts.Get(fixture.Soon(t), deploy.ServiceAccountName, metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, []corev1.LocalObjectReference{{Name: "registry"}}, account.ImagePullSecrets)

	// The recipe by which Velero's server is told to wait for a year is a patch of the adopted agents.
	s.edit(types.JSONPatchType, `[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--repo-maintenance-frequency=1h"},
		{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--log-level=debug"}]`)
	s.succeeds("", "adopt", "--force", "--lateen-image=example.test/lateen:v2")
	container := s.agents().Spec.Template.Spec.Containers[0]
	require.Equal(t, "example.test/lateen:v2", container.Image)
	require.Equal(t, []string{"node-agent", "--features=EnableCSI", "--host-path=/host_pods", "--repo-maintenance-frequency=1h", "--log-level=debug"}, container.Args)

	_, reported = s.succeeds("", "adopt", "--undo", "--force")
	require.Equal(t, losesArgument, reported)
	linux.Spec.Template.Spec.Containers[0].Args = append(linux.Spec.Template.Spec.Containers[0].Args, "--log-level=debug")
	require.Equal(t, asJSON(t, linux), asJSON(t, s.agents()))
	require.Equal(t, asJSON(t, windows), asJSON(t, s.daemonSet(api.WindowsDaemonSetName)))
	s.requireGone(deploy.RBAC(s.namespace)...)
	_, reported = s.fails("", "adopt", "--undo", "--force")
	require.Contains(t, reported, "lateen adopt did not change it")
}

// A GitOps tool applies what the command prints, with the same result as the command itself.
func TestPrintedObjectsOfAnAdoptionMakeIt(t *testing.T) {
	prints := []string{"adopt", "--dry-run", "-o=json", "--lateen-image=example.test/lateen:v1"}
	s := newEnv(t)
	s.installVelero("--use-node-agent", "--features=EnableCSI")
	before := s.agents()
	s.adopt("--lateen-image=example.test/lateen:v1")
	adopted := s.agents()
	s.adopt("--undo")
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))

	out, reported := s.succeeds("", prints...)
	require.Empty(t, reported)
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()), "it only prints")
	for _, object := range printed(t, out) {
		require.NoError(t, testenv.Apply(fixture.Soon(t), plane.Admin(), &object))
	}
	applied := s.agents()
	require.Equal(t, []string{"/lateen"}, applied.Spec.Template.Spec.Containers[0].Command, "an apply without it keeps Velero's")
	applied.Spec.Template.Spec.Containers[0].Command = nil
	require.Equal(t, asJSON(t, adopted), asJSON(t, applied))
	s.requireThere(deploy.RBAC(s.namespace)...)
	s.adopt("--undo")
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))
}

// Whoever owns Velero's manifests, such as Helm or Argo CD, only overrides the image of the DaemonSet.
func TestVelerosDaemonSetRunsLateenIfOnlyItsImageChanges(t *testing.T) {
	s := envOf(t, plane)
	name, root := "node-"+s.namespace, filepath.Join(t.TempDir(), "kubelet")
	s.installVelero("--use-node-agent", "--kubelet-root-dir="+root)
	s.edit(types.JSONPatchType, `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"example.test/lateen:v1"}]`)
	s.node(name, root)
	w, err := testenv.Open(fixture.Soon(t), plane.Admin(), s.namespace)
	require.NoError(t, err)
	agent, err := w.NodeAgentPod(fixture.Soon(t), name, func(pod *corev1.Pod) bool {
		return testenv.Ready(pod) && pod.Spec.Containers[0].Image == "example.test/lateen:v1"
	})
	require.NoError(t, err)
	require.Equal(t, []string{"/velero"}, agent.Spec.Containers[0].Command)
	require.Equal(t, []string{"node-agent", "server"}, agent.Spec.Containers[0].Args[:2])

	s.backUp(w, name)
	agent, err = s.kube.CoreV1().Pods(s.namespace).Get(fixture.Soon(t), agent.Name, metav1.GetOptions{})
	require.NoError(t, err)
	require.False(t, objects.IsVelerosAgent(agent), "the coordinator would leave transfers to it")
}

// Maintenance jobs of adopted agents are as the server was told. Agents read Deployment velero alone; where the server has another
// name, as Helm gives it, they are told.
func TestAdoptedAgentsGetTheConfigurationOfTheServer(t *testing.T) {
	s := newEnv(t)
	s.installVelero("--use-node-agent")
	_, err := s.kube.CoreV1().ConfigMaps(s.namespace).Create(fixture.Soon(t), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "jobs"}, Data: map[string]string{"global": `{"podResources":{"memoryLimit":"1Gi"}}`},
	}, metav1.CreateOptions{})
	require.NoError(t, err)
	deployments := s.kube.AppsV1().Deployments(s.namespace)
	server := s.server()
	container := &server.Spec.Template.Spec.Containers[0]
	container.Args = append(container.Args, "--repo-maintenance-job-configmap=jobs")
	server.ObjectMeta = metav1.ObjectMeta{Name: server.Name, Labels: server.Labels}
	server, err = deployments.Update(fixture.Soon(t), server, metav1.UpdateOptions{})
	require.NoError(t, err)
	out, _ := s.succeeds("", "adopt", "--dry-run", "--lateen-image=example.test/lateen:v1")
	require.Contains(t, out, "Maintenance jobs use ConfigMap jobs, named by Deployment velero.\n")
	out, _ = s.fails("", "check") // no node runs the server
	require.Contains(t, strings.Join(strings.Fields(out), " "), "repo-maintenance-job: ConfigMap "+s.namespace+"/jobs, named by Deployment velero No problems.")

	require.NoError(t, deployments.Delete(fixture.Soon(t), server.Name, metav1.DeleteOptions{}))
	_, reported := s.fails("", "adopt", "--force", "--lateen-image=example.test/lateen:v1", "--pod-policy=restricted")
	require.Contains(t, reported, "find Velero's server for --pod-policy")
	server.ObjectMeta, server.Spec.Template.Spec.ServiceAccountName = metav1.ObjectMeta{Name: "backups-velero"}, "servers"
	_, err = deployments.Create(fixture.Soon(t), server, metav1.CreateOptions{})
	require.NoError(t, err)
	s.adopt("--lateen-image=example.test/lateen:v1")
	require.Equal(t, []string{
		"node-agent", "--features=", "--host-path=/host_pods", "--mover-image=velero/velero:v1.18.3", "--mover-service-account=servers", "--repo-maintenance-job-configmap=jobs",
	}, s.agents().Spec.Template.Spec.Containers[0].Args)
}

func TestAnAdoptionRestrictsMoversUntilTheUndo(t *testing.T) {
	s := newEnv(t)
	s.installVelero("--use-node-agent", "--kubelet-root-dir=/data/kubelet")
	volumes := s.namespace + "-volumes"
	s.createNamespace(volumes)
	switches := []string{
		"--lateen-image=example.test/lateen:v1", "--restrict-movers", "--mover-secrets=bucket", "--pod-policy=privileged",
		"--copy-secrets=key", "--copy-configmaps=kms", "--copy-from=" + volumes,
	}
	account := deploy.MoverAccess(s.namespace, deploy.Movers{Account: true, Secrets: []string{"bucket"}})
	velero := deploy.Inherited{Image: "velero/velero", Account: "velero", Secrets: []string{"cloud-credentials"}}
	copies := deploy.Copies{Secrets: []string{"key"}, ConfigMaps: []string{"kms"}, From: []string{volumes}}
	others := deploy.PodPolicies(deploy.PodPolicy{
		Namespace: s.namespace, PodsDir: "/data/kubelet/pods", Mode: deploy.PodPolicyPrivileged, Movers: deploy.Movers{Account: true},
		Copies: copies, Inherited: velero,
	})
	others = append(others, deploy.CopyAccess(s.namespace, copies)...)
	wanted := append(append([]runtime.Object{}, account...), others...)
	before := s.agents()

	out, _ := s.succeeds("", append([]string{"adopt", "--dry-run"}, switches...)...)
	require.Contains(t, out, "\n+    - --mover-service-account=lateen-mover\n")
	require.Contains(t, out, "\nServiceAccount lateen-mover is applied.\n")
	s.requireGone(wanted...)
	out, _ = s.succeeds("", append([]string{"adopt", "--dry-run", "-o=json"}, switches...)...)
	var names []string
	for _, object := range printed(t, out) {
		names = append(names, object.GetKind()+" "+object.GetName())
	}
	s.adopt(switches...)
	require.Contains(t, s.agents().Spec.Template.Spec.Containers[0].Args, "--mover-service-account=lateen-mover")
	_, reported := s.succeeds("", append([]string{"adopt", "--force"}, switches[:4]...)...)
	require.Contains(t, reported, "Warning: agents may still read what earlier --copy flags named; without need: kubectl delete role lateen-"+s.namespace+"-copies -n "+volumes+"\n")
	s.adopt(switches...)
	_, reported = s.fails("", "adopt", "--force", "--lateen-image=example.test/lateen:v2", "--restrict-movers")
	require.Contains(t, reported, "may refuse the movers of the changed agents: repeat --pod-policy")
	for _, manifest := range manifests(t, wanted...) {
		require.Contains(t, names, manifest.GetKind()+" "+manifest.GetName())
		have, err := s.found(manifest)
		require.NoError(t, err)
		switch manifest.GetKind() {
		case "Role":
			require.Equal(t, manifest.Object["rules"], have.Object["rules"])
		case "ValidatingAdmissionPolicy":
			for _, field := range []string{"variables", "validations"} {
				require.Equal(t, manifest.Object["spec"].(map[string]any)[field], have.Object["spec"].(map[string]any)[field], manifest.GetName())
			}
		}
	}

	// A mover whose ServiceAccount is deleted loses its token, and cannot write its results.
	mover := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "mover"}}
	mover.Spec.ServiceAccountName, mover.Spec.Containers = deploy.MoverAccountName, []corev1.Container{{Name: "mover", Image: "velero/velero:v1.18.3"}}
	_, err := s.kube.CoreV1().Pods(s.namespace).Create(fixture.Soon(t), mover, metav1.CreateOptions{})
	require.NoError(t, err)
	_, reported = s.succeeds("", "adopt", "--undo", "--force")
	require.Contains(t, reported, "Warning: ServiceAccount, Role and RoleBinding lateen-mover remain, because movers run with them")
	s.requireThere(account...)
	s.requireGone(append(others, deploy.RBAC(s.namespace)...)...)
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))
	require.NoError(t, s.kube.CoreV1().Pods(s.namespace).Delete(fixture.Soon(t), mover.Name, metav1.DeleteOptions{}))
	s.adopt("--lateen-image=example.test/lateen:v1")
	s.adopt("--undo")
	s.requireGone(wanted...)
}

func TestUninstallingIsRefusedWhileAgentsAreAdopted(t *testing.T) {
	s := newEnv(t)
	s.install("--use-node-agent=false")
	require.NoError(t, testenv.Apply(fixture.Soon(t), plane.Admin(), &s.chartsAgents()[0]))
	s.succeeds("", "adopt", "--force", "--lateen-image=example.test/lateen:v1")
	_, reported := s.fails("", "uninstall", "--force")
	require.Contains(t, reported, "DaemonSet node-agent is adopted, and its agents would lose their RBAC rules: restore Velero's agents first: lateen adopt --undo -n "+s.namespace)
	s.requireThere(deploy.RBAC(s.namespace)...)

	s.edit(types.JSONPatchType, `[{"op":"replace","path":"/spec/template/spec/containers/0/args","value":["/velero","node-agent","server"]}]`)
	out, reported := s.fails("n\n", "uninstall")
	require.Contains(t, reported, "nothing removed")
	for _, part := range []string{"Secret velero-repo-credentials has the password of the repositories.", "Velero's server deletes them with\n  each deleted Restore.", "Logs and results of Restores do not"} {
		require.Contains(t, out, part)
	}
	s.succeeds("", "uninstall", "--force")
}
