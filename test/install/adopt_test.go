package install

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/testenv"
)

// installVelero is what `velero install` does with more flags than it must have.
func (s *env) installVelero(args ...string) {
	s.installVeleroWith(append([]string{"--use-node-agent"}, args...)...)
}

// installVeleroWith makes the objects of `velero install` with those flags.
func (s *env) installVeleroWith(args ...string) {
	s.define()
	ctx, cancel := context.WithTimeout(s.Context(), testenv.Patience) // a process, and what it prints made
	defer cancel()
	all := append(velero(s.T), "--image=velero/velero:v1.18.3", "--dry-run", "--output=json",
		"--namespace="+s.namespace, "--kubeconfig="+s.kubeconfig)
	text, err := program(ctx, s.T, "velero", append(append([]string{"install"}, all...), args...)...).Output()
	require.NoError(s, err)
	for _, object := range printed(s.T, string(text)) {
		if object.GetKind() != "CustomResourceDefinition" {
			require.NoError(s, testenv.Apply(ctx, plane.Admin(), &object))
		}
	}
}

func (s *env) agents() *appsv1.DaemonSet {
	agents, err := s.kube.AppsV1().DaemonSets(s.namespace).Get(soon(s.T), deploy.DaemonSetName, metav1.GetOptions{})
	require.NoError(s, err)
	return agents
}

func (s *env) server() *appsv1.Deployment {
	server, err := s.kube.AppsV1().Deployments(s.namespace).Get(soon(s.T), deploy.VeleroDeployment, metav1.GetOptions{})
	require.NoError(s, err)
	return server
}

func (s *env) createNamespace(name string) {
	_, err := s.kube.CoreV1().Namespaces().Create(soon(s.T), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	require.NoError(s, err)
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

func TestAdoptedAgentsKeepAllButTheirProgram(t *testing.T) {
	s := newEnv(t)
	s.installVelero("--features=EnableCSI", "--pod-labels=team=storage", "--node-agent-priority-class-name=agents", "--kubelet-root-dir=/data/kubelet")
	patch := `{"metadata":{"annotations":{"team":"storage"}},"spec":{"template":{"spec":{"nodeSelector":{"disk":"ssd"},"tolerations":[{"operator":"Exists"}]}}}}`
	_, err := s.kube.AppsV1().DaemonSets(s.namespace).Patch(soon(t), deploy.DaemonSetName, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
	require.NoError(t, err)
	before := s.agents()

	out, reported := s.fails("n\n", "adopt", "--lateen-image=example.test/lateen:v1")
	require.Contains(t, reported, "nothing changed")
	require.Contains(t, out, "\n-     image: velero/velero:v1.18.3\n")
	require.Contains(t, out, "\n+     image: example.test/lateen:v1\n")
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))

	s.adopt("--lateen-image=example.test/lateen:v1")
	adopted := s.agents()
	want := before.Spec.Template.DeepCopy()
	container := &want.Spec.Containers[0]
	container.Image, container.Command, container.Args = "example.test/lateen:v1", nil, []string{"node-agent", "--features=EnableCSI", "--host-path=/host_pods"}
	container.StartupProbe = adopted.Spec.Template.Spec.Containers[0].StartupProbe
	container.LivenessProbe = adopted.Spec.Template.Spec.Containers[0].LivenessProbe
	container.ReadinessProbe = adopted.Spec.Template.Spec.Containers[0].ReadinessProbe
	container.Env = append(container.Env, podUID())
	want.Spec.ServiceAccountName, want.Spec.DeprecatedServiceAccount = "lateen", "lateen"
	require.Equal(t, *want, adopted.Spec.Template)
	require.Equal(t, "/healthz", container.StartupProbe.HTTPGet.Path)
	require.Equal(t, "/healthz", container.LivenessProbe.HTTPGet.Path)
	require.Equal(t, "/readyz", container.ReadinessProbe.HTTPGet.Path)
	require.Equal(t, before.Spec.Selector, adopted.Spec.Selector)

	s.adopt("--lateen-image=example.test/lateen:v2")
	require.Equal(t, "example.test/lateen:v2", s.agents().Spec.Template.Spec.Containers[0].Image)

	s.adopt("--undo")
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))
	for _, object := range deploy.RBAC(s.namespace) {
		manifest, err := deploy.Manifest(object)
		require.NoError(t, err)
		_, err = s.found(*manifest)
		require.True(t, apierrors.IsNotFound(err), "%s is left: %v", manifest.GetKind(), err)
	}
	_, reported = s.fails("", "adopt", "--undo", "--force")
	require.Contains(t, reported, "lateen adopt did not change it")
}

// A GitOps tool applies what the command prints, with the same result as the command itself.
func TestPrintedObjectsOfAnAdoptionMakeIt(t *testing.T) {
	s := newEnv(t)
	s.installVelero("--features=EnableCSI")
	before := s.agents()
	s.adopt("--lateen-image=example.test/lateen:v1")
	adopted := s.agents()
	s.adopt("--undo")
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))

	out, reported := s.succeeds("", "adopt", "--dry-run", "-o=json", "--lateen-image=example.test/lateen:v1")
	require.Empty(t, reported)
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()), "it only prints")
	objects := printed(t, out)
	for _, object := range objects {
		require.NoError(t, testenv.Apply(soon(t), plane.Admin(), &object))
	}
	applied := s.agents()
	require.Equal(t, []string{"/lateen"}, applied.Spec.Template.Spec.Containers[0].Command, "an apply without it keeps Velero's")
	applied.Spec.Template.Spec.Containers[0].Command = nil
	require.Equal(t, asJSON(t, adopted), asJSON(t, applied))
	for _, object := range deploy.RBAC(s.namespace) {
		manifest, err := deploy.Manifest(object)
		require.NoError(t, err)
		_, err = s.found(*manifest)
		require.NoError(t, err)
	}
	s.adopt("--undo")
	require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))

	_, reported = s.fails("", "adopt", "-o=json", "--lateen-image=example.test/lateen:v1")
	require.Contains(t, reported, "add --dry-run")
	_, reported = s.fails("", "adopt", "-o=table", "--dry-run", "--lateen-image=example.test/lateen:v1")
	require.Contains(t, reported, `-o "table" is unknown`)
}

// helms is the DaemonSet of Helm's chart in the namespace of the environment.
func (s *env) helms() *appsv1.DaemonSet {
	text, err := os.ReadFile("testdata/helm-node-agent.yaml")
	require.NoError(s, err)
	var agents appsv1.DaemonSet
	require.NoError(s, yaml.UnmarshalStrict(text, &agents))
	agents.Namespace = s.namespace
	return &agents
}

func TestAgentsOfHelmAreAdopted(t *testing.T) {
	s := newEnv(t)
	s.installVeleroWith() // a second DaemonSet of one name may wait five minutes for pods of the first (expectations of its controller)
	workloads := s.kube.AppsV1().DaemonSets(s.namespace)
	before, err := workloads.Create(soon(t), s.helms(), metav1.CreateOptions{})
	require.NoError(t, err)

	adopt := func(image string) corev1.PodTemplateSpec {
		_, reported := s.succeeds("", "adopt", "--force", "--lateen-image="+image)
		require.Contains(t, reported, "Warning: DaemonSet node-agent is managed by Helm")
		return s.agents().Spec.Template
	}
	adopted := adopt("example.test/lateen:v1")
	want := before.Spec.Template.DeepCopy()
	container := &want.Spec.Containers[0]
	container.Image, container.Command = "example.test/lateen:v1", nil
	container.Args = append(append([]string{"node-agent"}, container.Args[2:]...), "--host-path=/host_pods")
	container.StartupProbe = adopted.Spec.Containers[0].StartupProbe
	container.LivenessProbe, container.ReadinessProbe = adopted.Spec.Containers[0].LivenessProbe, adopted.Spec.Containers[0].ReadinessProbe
	container.Env = append(container.Env, podUID())
	want.Spec.ServiceAccountName, want.Spec.DeprecatedServiceAccount = "lateen", "lateen"
	require.Equal(t, *want, adopted)
	require.Equal(t, "http-monitoring", container.LivenessProbe.HTTPGet.Port.StrVal)
	require.Equal(t, "http-monitoring", container.ReadinessProbe.HTTPGet.Port.StrVal)

	requeue := s.agents() // helm upgrade writes its own template and lets alone what it does not know
	requeue.Spec.Template, requeue.ResourceVersion = s.helms().Spec.Template, ""
	requeue.Spec.Template.Spec.Containers[0].Image = "velero/velero:v1.18.3"
	upgraded, err := workloads.Update(soon(t), requeue, metav1.UpdateOptions{})
	require.NoError(t, err)
	require.Equal(t, "example.test/lateen:v2", adopt("example.test/lateen:v2").Spec.Containers[0].Image)
	s.adopt("--undo")
	delete(upgraded.Annotations, api.AnnotationAdopted)
	delete(upgraded.Annotations, api.AnnotationAdoptedAs)
	require.Equal(t, asJSON(t, upgraded), asJSON(t, s.agents()))
}

func TestRepositoriesOfResticAreWarnedOf(t *testing.T) {
	s := newEnv(t)
	s.installVelero()
	s.repository("app-default-restic", "restic")
	out, reported := s.succeeds("", "adopt", "--dry-run", "--lateen-image=example.test/lateen:v1")
	require.Contains(t, reported, "Warning: BackupRepository app-default-restic has type restic")
	require.Contains(t, out, "+     image: example.test/lateen:v1")
	require.Equal(t, "velero/velero:v1.18.3", s.agents().Spec.Template.Spec.Containers[0].Image)
}

func (s *env) adopt(args ...string) {
	_, reported := s.succeeds("", append([]string{"adopt", "--force"}, args...)...)
	require.Empty(s, reported)
}

func TestAgentsThatCannotBeAdopted(t *testing.T) {
	tests := map[string]struct {
		change func(*corev1.PodSpec)
		says   string
	}{
		"because they have an argument that Lateen does not know": {
			change: func(pod *corev1.PodSpec) { pod.Containers[0].Args = append(pod.Containers[0].Args, "--no-such-flag=1") },
			says:   "unknown flag: --no-such-flag",
		},
		"because they run something else": {
			change: func(pod *corev1.PodSpec) { pod.Containers[0].Args = []string{"server"} },
			says:   "does not run velero node-agent server",
		},
		"because there is another container": {
			change: func(pod *corev1.PodSpec) {
				pod.Containers = append(pod.Containers, corev1.Container{Name: "beside", Image: "example.test/beside:v1"})
			},
			says: "its pods have 2 containers",
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := newEnv(t)
			s.define()
			_, err := testenv.New(soon(t), plane.Admin(), testenv.Options{Namespace: s.namespace, Node: "no-such-node"})
			require.NoError(t, err)
			agents := s.agents()
			test.change(&agents.Spec.Template.Spec)
			agents.ResourceVersion = "" // controllers write to it, too
			_, err = s.kube.AppsV1().DaemonSets(s.namespace).Update(soon(t), agents, metav1.UpdateOptions{})
			require.NoError(t, err)
			before := s.agents()
			_, reported := s.fails("", "adopt", "--force", "--lateen-image=example.test/lateen:v1")
			require.Contains(t, reported, test.says)
			require.Len(t, strings.Split(strings.TrimSpace(reported), "\n"), 1)
			require.Equal(t, asJSON(t, before), asJSON(t, s.agents()))
		})
	}
}
