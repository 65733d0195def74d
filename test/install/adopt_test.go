package install

import (
	"context"
	"encoding/json"
	"slices"
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
	"github.com/lateen-project/lateen/test/testenv"
)

// installVelero is what `velero install` does with more flags than it must have.
func (e *env) installVelero(args ...string) {
	for _, object := range e.velerosObjects(args...) {
		require.NoError(e, testenv.Apply(soon(e.T), plane.Admin(), &object))
	}
}

// velerosObjects are those that `velero install` would create, without the definitions.
func (e *env) velerosObjects(args ...string) []unstructured.Unstructured {
	ctx, cancel := context.WithTimeout(e.Context(), testenv.Patience) // a process, and what it prints made
	defer cancel()
	all := append(velero(e.T), "--image=velero/velero:v1.18.3", "--dry-run", "--output=json",
		"--namespace="+e.namespace, "--kubeconfig="+e.kubeconfig)
	text, err := program(ctx, e.T, "velero", append(append([]string{"install"}, all...), args...)...).Output()
	require.NoError(e, err)
	return slices.DeleteFunc(printed(e.T, string(text)), func(object unstructured.Unstructured) bool {
		return object.GetKind() == "CustomResourceDefinition"
	})
}

func (e *env) agents() *appsv1.DaemonSet { return e.daemonSet(deploy.DaemonSetName) }

func (e *env) daemonSet(name string) *appsv1.DaemonSet {
	agents, err := e.kube.AppsV1().DaemonSets(e.namespace).Get(soon(e.T), name, metav1.GetOptions{})
	require.NoError(e, err)
	return agents
}

// edit changes the DaemonSet of the agents.
func (e *env) edit(kind types.PatchType, patch string) {
	_, err := e.kube.AppsV1().DaemonSets(e.namespace).Patch(soon(e.T), deploy.DaemonSetName, kind, []byte(patch), metav1.PatchOptions{})
	require.NoError(e, err)
}

func (e *env) server() *appsv1.Deployment {
	server, err := e.kube.AppsV1().Deployments(e.namespace).Get(soon(e.T), deploy.VeleroDeployment, metav1.GetOptions{})
	require.NoError(e, err)
	return server
}

func (e *env) createNamespace(name string) {
	_, err := e.kube.CoreV1().Namespaces().Create(soon(e.T), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(e, err)
}

// adopt runs `lateen adopt`, which has nothing to warn of.
func (e *env) adopt(args ...string) {
	_, reported := e.succeeds("", append([]string{"adopt", "--force"}, args...)...)
	require.Empty(e, reported)
}

// requireThere finds objects of the package deploy in the cluster.
func (e *env) requireThere(objects ...runtime.Object) {
	for _, object := range objects {
		manifest, err := deploy.Manifest(object)
		require.NoError(e, err)
		_, err = e.found(*manifest)
		require.NoError(e, err, "%s %s", manifest.GetKind(), manifest.GetName())
	}
}

// requireGone finds none of them.
func (e *env) requireGone(objects ...runtime.Object) {
	for _, object := range objects {
		manifest, err := deploy.Manifest(object)
		require.NoError(e, err)
		_, err = e.found(*manifest)
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
		losesArgument = "Warning: DaemonSet node-agent loses arguments that Velero's agents do not support: --repo-maintenance-frequency=1h\n"
	)
	s := newEnv(t)
	s.installVelero("--use-node-agent", "--use-node-agent-windows", "--features=EnableCSI", "--pod-labels=team=storage",
		"--node-agent-priority-class-name=agents", "--kubelet-root-dir=/data/kubelet")
	s.edit(types.MergePatchType, `{"metadata":{"annotations":{"team":"storage"}},"spec":{"template":{"spec":{"nodeSelector":{"disk":"ssd"},"tolerations":[{"operator":"Exists"}]}}}}`)
	linux, windows := s.agents(), s.daemonSet(deploy.WindowsDaemonSetName)

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

	_, reported = s.succeeds("", "adopt", "--force", toV1)
	require.Equal(t, ofWindowsToo, reported)
	requireAdopted(t, linux, s.agents())
	requireAdopted(t, windows, s.daemonSet(deploy.WindowsDaemonSetName))

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
	require.Equal(t, asJSON(t, windows), asJSON(t, s.daemonSet(deploy.WindowsDaemonSetName)))
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
		require.NoError(t, testenv.Apply(soon(t), plane.Admin(), &object))
	}
	applied := s.agents()
	require.Equal(t, []string{"/lateen"}, applied.Spec.Template.Spec.Containers[0].Command, "an apply without it keeps Velero's")
	applied.Spec.Template.Spec.Containers[0].Command = nil
	require.Equal(t, asJSON(t, adopted), asJSON(t, applied))
	s.requireThere(deploy.RBAC(s.namespace)...)
	s.adopt("--undo")
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))
}
