package install

import (
	"testing"

	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
)

func (s *env) windowsAgents() *appsv1.DaemonSet {
	agents, err := s.kube.AppsV1().DaemonSets(s.namespace).Get(soon(s.T), deploy.WindowsDaemonSetName, metav1.GetOptions{})
	require.NoError(s, err)
	return agents
}

// podUID is what agents of Lateen know their pod by.
func podUID() corev1.EnvVar {
	return corev1.EnvVar{Name: "POD_UID", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.uid"}}}
}

func TestAgentsOnWindowsAreAdoptedWithTheOthers(t *testing.T) {
	s := newEnv(t)
	s.installVelero("--use-node-agent-windows")
	linux, windows := s.agents(), s.windowsAgents()
	out, reported := s.succeeds("y\n", "adopt", "--lateen-image=example.test/lateen:v1")
	require.Contains(t, reported, "Warning: DaemonSet node-agent-windows is adopted too: --lateen-image must also support Windows nodes")
	require.Contains(t, out, "/node-agent, spec.template:\n")
	require.Contains(t, out, "/node-agent-windows, spec.template:\n")
	adopted := s.windowsAgents()
	want := windows.Spec.Template.DeepCopy()
	container, now := &want.Spec.Containers[0], adopted.Spec.Template.Spec.Containers[0]
	container.Image, container.Command = "example.test/lateen:v1", nil
	container.Args = append(append([]string{"node-agent"}, container.Args[2:]...), "--host-path=/host_pods")
	container.StartupProbe, container.LivenessProbe, container.ReadinessProbe = now.StartupProbe, now.LivenessProbe, now.ReadinessProbe
	container.Env = append(container.Env, podUID())
	want.Spec.ServiceAccountName, want.Spec.DeprecatedServiceAccount = "lateen", "lateen"
	require.Equal(t, *want, adopted.Spec.Template)
	require.Equal(t, "/readyz", now.ReadinessProbe.HTTPGet.Path)
	require.Equal(t, "example.test/lateen:v1", s.agents().Spec.Template.Spec.Containers[0].Image)

	s.adopt("--undo")
	require.Equal(t, asJSON(t, linux), asJSON(t, s.agents()))
	require.Equal(t, asJSON(t, windows), asJSON(t, s.windowsAgents()))
	_, err := s.kube.CoreV1().ServiceAccounts(s.namespace).Get(soon(t), "lateen", metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err), "%v", err)
}

// The recipe by which Velero's server is told to wait for a year is a patch of the adopted agents.
func TestWhatWasChangedSinceTheAdoptionSurvives(t *testing.T) {
	s := newEnv(t)
	s.installVelero()
	before := s.agents()
	s.adopt("--lateen-image=example.test/lateen:v1")
	edit := `[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--repo-maintenance-frequency=1h"},
		{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--log-level=debug"},
		{"op":"add","path":"/spec/template/spec/containers/0/resources/limits","value":{"memory":"1Gi"}},
		{"op":"add","path":"/spec/template/spec/tolerations","value":[{"operator":"Exists"}]}]`
	_, err := s.kube.AppsV1().DaemonSets(s.namespace).Patch(soon(t), deploy.DaemonSetName, types.JSONPatchType, []byte(edit), metav1.PatchOptions{})
	require.NoError(t, err)

	for _, image := range []string{"example.test/lateen:v2", "example.test/lateen:v3"} {
		s.adopt("--lateen-image=" + image)
		pod := s.agents().Spec.Template.Spec
		require.Equal(t, image, pod.Containers[0].Image)
		require.Equal(t, []string{"node-agent", "--features=", "--host-path=/host_pods", "--repo-maintenance-frequency=1h", "--log-level=debug"}, pod.Containers[0].Args)
		require.Equal(t, "1Gi", pod.Containers[0].Resources.Limits.Memory().String())
		require.Equal(t, []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, pod.Tolerations)
	}

	_, reported := s.succeeds("", "adopt", "--undo", "--force")
	require.Contains(t, reported, "Warning: DaemonSet node-agent loses arguments that Velero's agents do not support: --repo-maintenance-frequency=1h\n")
	want := before.DeepCopy()
	container := &want.Spec.Template.Spec.Containers[0]
	container.Args = append(container.Args, "--log-level=debug")
	pod := s.agents().Spec.Template.Spec
	container.Resources = pod.Containers[0].Resources
	want.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	require.Equal(t, "1Gi", pod.Containers[0].Resources.Limits.Memory().String())
	require.Equal(t, asJSON(t, want), asJSON(t, s.agents()))
}

func TestTransfersWithoutAMoverAreWarnedOf(t *testing.T) {
	s := newEnv(t)
	s.installVelero()
	backups := schema.GroupVersionResource{Group: "velero.io", Version: "v1", Resource: "podvolumebackups"}
	uploads := schema.GroupVersionResource{Group: "velero.io", Version: "v2alpha1", Resource: "datauploads"}
	phase := func(resource schema.GroupVersionResource, phase string) {
		_, err := s.dynamic.Resource(resource).Namespace(s.namespace).Patch(soon(t), "held", types.MergePatchType, []byte(`{"status":{"phase":"`+phase+`"}}`), metav1.PatchOptions{})
		require.NoError(t, err)
	}
	warned := func(args ...string) string {
		_, reported := s.succeeds("", append([]string{"adopt", "--dry-run"}, args...)...)
		return reported
	}
	require.Empty(t, warned("--lateen-image=example.test/lateen:v1"))
	defer s.holds(backups, "PodVolumeBackup", api.FinalizerPodVolume)()
	defer s.holds(uploads, "DataUpload", api.FinalizerData)()
	phase(uploads, "Accepted")
	reported := warned("--lateen-image=example.test/lateen:v1")
	require.Contains(t, reported, "Warning: transfers without a mover: 1 podvolumebackups New, 1 datauploads Accepted: ")
	require.Contains(t, reported, "an Accepted transfer belongs to Velero's agent until that agent stops")

	phase(uploads, "InProgress")
	s.succeeds("", "adopt", "--force", "--lateen-image=example.test/lateen:v1")
	reported = warned("--undo")
	require.Contains(t, reported, "Warning: transfers without a mover: 1 podvolumebackups New: ")
	require.NotContains(t, reported, "Accepted transfer")
	phase(backups, "Accepted")
	require.Contains(t, warned("--undo"), "1 podvolumebackups Accepted: a New transfer may be accepted by an agent of Velero or of Lateen while both run; "+
		"an Accepted transfer whose mover starts before Velero's agent fails after the prepare timeout")
	phase(backups, "Completed")
	require.Empty(t, warned("--undo"))
}

func TestUninstallingIsRefusedWhileAgentsAreAdopted(t *testing.T) {
	s := newEnv(t)
	s.install("--use-node-agent=false")
	workloads := s.kube.AppsV1().DaemonSets(s.namespace)
	_, err := workloads.Create(soon(t), s.helms(), metav1.CreateOptions{})
	require.NoError(t, err)
	s.succeeds("", "adopt", "--force", "--lateen-image=example.test/lateen:v1")
	_, reported := s.fails("", "uninstall", "--force")
	require.Contains(t, reported, "DaemonSet node-agent is adopted, and its agents would lose their RBAC rules: restore Velero's agents first: lateen adopt --undo -n "+s.namespace)
	_, err = s.kube.CoreV1().ServiceAccounts(s.namespace).Get(soon(t), "lateen", metav1.GetOptions{})
	require.NoError(t, err)

	_, err = workloads.Patch(soon(t), deploy.DaemonSetName, types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"serviceAccountName":"velero","serviceAccount":"velero"}}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	_, reported = s.fails("", "uninstall", "--force")
	require.Contains(t, reported, "annotate daemonset node-agent lateen.dev/adopted-from- lateen.dev/adopted-as-")
	_, err = workloads.Patch(soon(t), deploy.DaemonSetName, types.MergePatchType, []byte(`{"metadata":{"annotations":{"lateen.dev/adopted-from":null}}}`), metav1.PatchOptions{})
	require.NoError(t, err)
	out, reported := s.fails("n\n", "uninstall")
	require.Contains(t, reported, "nothing removed")
	require.Contains(t, out, "Secret velero-repo-credentials has the password of the repositories.")
	require.Contains(t, out, "Velero's server deletes them with\n  each deleted Restore.")
	require.Contains(t, out, "Logs and results of Restores do not")
	s.succeeds("", "uninstall", "--force")
}

func TestAdoptedAgentsMayCopyWhatIsNamedUntilTheUndo(t *testing.T) {
	s := newEnv(t)
	s.installVelero()
	volumes := s.namespace + "-volumes"
	s.createNamespace(volumes)
	_, reported := s.fails("", "adopt", "--force", "--lateen-image=example.test/lateen:v1", "--copy-secrets=key")
	require.Contains(t, reported, "--copy-from is missing")
	copies := deploy.Copies{Secrets: []string{"key"}, ConfigMaps: []string{"kms"}, From: []string{volumes}}
	s.adopt("--lateen-image=example.test/lateen:v1", "--copy-secrets=key", "--copy-configmaps=kms", "--copy-from="+volumes)
	rights := deploy.CopyAccess(s.namespace, copies)
	require.Len(t, rights, 4)
	for _, object := range rights {
		manifest, err := deploy.Manifest(object)
		require.NoError(t, err)
		_, err = s.found(*manifest)
		require.NoError(t, err, manifest.GetKind())
	}
	_, reported = s.fails("", "adopt", "--undo", "--force", "--copy-from="+volumes)
	require.Contains(t, reported, "--undo removes all RBAC rules for copies")
	s.adopt("--undo")
	for _, object := range rights {
		manifest, err := deploy.Manifest(object)
		require.NoError(t, err)
		_, err = s.found(*manifest)
		require.True(t, apierrors.IsNotFound(err), "%s is left: %v", manifest.GetKind(), err)
	}
}
