package deploy_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	v1crds "github.com/vmware-tanzu/velero/config/crd/v1/crds"
	v2alpha1crds "github.com/vmware-tanzu/velero/config/crd/v2alpha1/crds"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/exposer/objects"
)

var update = flag.Bool("update", false, "rewrite the golden files from what the package makes")

func TestInstallation(t *testing.T) {
	cases := map[string]struct {
		options deploy.Options
		objects []runtime.Object // nil: those of the options
		golden  string
	}{
		"with the host path, ConfigMaps, another kubelet root and all that a user may add, each shows where it belongs": {
			options: deploy.Options{
				Namespace: "backups", Image: "example.test/lateen:v1",
				NodeAgentConfigMap: "node-agent-config", BackupRepositoryConfigMap: "repository-config",
				MaintenanceConfigMap: "maintenance-config", MaintenanceFrequency: time.Hour,
				KubeletRoot: "/data/kubelet", HostPath: true, PriorityClass: "backup-agent", Features: "EnableCSI",
				Labels:      map[string]string{"team": "storage", "role": "may-not-be-changed"},
				Annotations: map[string]string{"prometheus.io/scrape": "false", "team": "storage"},
				Resources:   &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}},
			},
			golden: "hostpath.yaml",
		},
		"with a ServiceAccount of movers, agents use it and it has only their rights": {
			options: deploy.Options{Namespace: "velero", Image: "example.test/lateen:v1", Movers: deploy.Movers{
				Account: true, Secrets: []string{"second-location"}, Annotations: map[string]string{"eks.amazonaws.com/role-arn": "arn:of-the-bucket"},
			}},
			golden: "movers.yaml",
		},
		"with a policy on pods, agents may create only what movers and jobs are": {
			options: deploy.Options{Namespace: "velero", Image: "example.test/lateen:v1", HostPath: true, PodPolicy: deploy.PodPolicyPrivileged,
				Copies:    deploy.Copies{Secrets: []string{"kms-key"}, From: []string{"shop"}},
				Inherited: deploy.Velero{Image: deploy.VeleroImage, Account: "backup"}.Inherited()},
			golden: "podpolicy.yaml",
		},
		"with agents on Windows nodes, these have a DaemonSet of their own, without what only Linux has": {
			options: deploy.Options{Namespace: "velero", Image: "example.test/lateen:v1", Windows: true},
			golden:  "windows.yaml",
		},
		"Velero's server, with all that a user may add": {
			objects: deploy.Server(deploy.Velero{
				Namespace: "backups", Image: deploy.VeleroImage, Provider: "aws", Bucket: "bucket", Prefix: "prefix", CACert: []byte("pem"),
				LocationConfig: map[string]string{"region": "minio"}, SnapshotConfig: map[string]string{"region": "a"},
				Credentials: []byte("key"), ServiceAccountAnnotations: map[string]string{"a": "b"}, PriorityClass: "low",
				Labels: map[string]string{"team": "storage", "deploy": "may-not-be-changed"}, Annotations: map[string]string{"note": "mine", "prometheus.io/scrape": "false"},
				Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}, Plugins: []string{"velero/velero-plugin-for-aws:v1.14.0"}, Args: []string{"--features="},
			}),
			golden: "server.yaml",
		},
		"Velero's server, with an existing ServiceAccount and without locations": {
			objects: deploy.Server(deploy.Velero{Namespace: "velero", Image: deploy.VeleroImage, Account: "backup", NoLocation: true, NoSnapshots: true}),
			golden:  "server-plain.yaml",
		},
		"agents of Velero that are adopted": {
			objects: []runtime.Object{&appsv1.DaemonSet{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
				Spec: appsv1.DaemonSetSpec{Template: adopted(t)}}},
			golden: "adopted.yaml",
		},
		"the rules of copies from some namespaces": {
			objects: deploy.CopyAccess("velero", deploy.Copies{Secrets: []string{"kms-key"}, ConfigMaps: []string{"kms-config"}, From: []string{"shop", "bank"}}),
			golden:  "copies.yaml",
		},
		"the rules of copies from all namespaces": {
			objects: deploy.CopyAccess("velero", deploy.Copies{Secrets: []string{"kms-key", "kms-ca"}, From: []string{deploy.AllNamespaces}}),
			golden:  "copies-everywhere.yaml",
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			if test.objects == nil {
				test.objects = deploy.Objects(test.options)
			}
			got := render(t, test.objects)
			file := filepath.Join("testdata", test.golden)
			if *update {
				require.NoError(t, os.WriteFile(file, got, 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got))
		})
	}
}

// No role of an installation lets an agent read Secrets, except those that a user names.
func TestNoDefaultRoleHasAWildcardOrReadsSecrets(t *testing.T) {
	for _, rule := range append(deploy.NamespaceRules(), deploy.ClusterRules()...) {
		require.NotContains(t, rule.Resources, "secrets")
		for _, word := range slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs) {
			require.NotContains(t, word, "*")
		}
	}
	require.Empty(t, deploy.CopyAccess("velero", deploy.Copies{}))
}

// A kind of transfers needs rights of agents and of movers, and the policy must allow it as an owner of movers.
func TestTheManifestsHaveEveryKind(t *testing.T) {
	movers := only[*rbacv1.Role](t, deploy.MoverAccess("velero", deploy.Movers{Account: true}))
	require.False(t, slices.ContainsFunc(movers.Rules, func(rule rbacv1.PolicyRule) bool {
		return slices.Contains(rule.Resources, "secrets") && len(rule.ResourceNames) == 0
	}), "all Secrets")
	owners := ""
	for _, object := range deploy.PodPolicies(deploy.PodPolicy{Namespace: "velero", PodsDir: "/data/pods/"}) { // as somebody may have written it
		if policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy); ok {
			for _, variable := range policy.Spec.Variables {
				require.True(t, variable.Name != "podsDir" || variable.Expression == `"/data/pods/"`, variable.Expression)
			}
			for _, validation := range policy.Spec.Validations {
				if strings.HasSuffix(validation.Message, "owns") {
					owners = validation.Expression
				}
			}
		}
	}
	requireRights := func(rules []rbacv1.PolicyRule, resource string, verbs ...string) {
		require.True(t, slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
			return slices.Contains(rule.Resources, resource) && slices.Equal(rule.Verbs, verbs)
		}), "no rule has %v for %s", verbs, resource)
	}
	for _, kind := range api.Kinds() {
		requireRights(deploy.NamespaceRules(), kind.Resource, "list", "watch", "patch")
		requireRights(movers.Rules, kind.Resource, "get", "list", "watch")
		require.Contains(t, owners, "'"+kind.GVK.Kind+"'")
	}
}

func render(t *testing.T, objects []runtime.Object) []byte {
	t.Helper()
	documents := make([][]byte, 0, len(objects))
	for _, object := range objects {
		manifest, err := deploy.Manifest(object)
		require.NoError(t, err)
		document, err := yaml.Marshal(manifest)
		require.NoError(t, err)
		documents = append(documents, document)
	}
	return bytes.Join(documents, []byte("---\n"))
}

// only returns the one object of a type.
func only[T runtime.Object](t *testing.T, all []runtime.Object) T {
	t.Helper()
	all = slices.DeleteFunc(slices.Clone(all), func(object runtime.Object) bool { _, is := object.(T); return !is })
	require.Len(t, all, 1)
	return all[0].(T)
}

func TestTheNetworkPolicySelectsTheAgentsAlone(t *testing.T) {
	all := deploy.Objects(deploy.Options{Namespace: "velero"})
	selected := labels.SelectorFromSet(only[*networkingv1.NetworkPolicy](t, all).Spec.PodSelector.MatchLabels)
	require.True(t, selected.Matches(labels.Set(only[*appsv1.DaemonSet](t, all).Spec.Template.Labels)))
	require.False(t, selected.Matches(labels.Set(objects.OwnerLabels("uid", "node-1"))), "movers")
	require.False(t, selected.Matches(labels.Set(serverPod(t, deploy.Velero{Image: deploy.VeleroImage}).Labels)), "Velero's server")
}

// The last argument of a flag is in force.
func TestTheArgumentsOfAUserFollowThoseOfTheOptions(t *testing.T) {
	agents := only[*appsv1.DaemonSet](t, deploy.Objects(deploy.Options{
		KubeletRoot: "/data/kubelet", MaintenanceFrequency: time.Second, Features: "EnableCSI", Args: []string{"--features="},
	})).Spec.Template.Spec
	args := agents.Containers[0].Args
	require.Equal(t, []string{deploy.MaintenanceFrequencyFlag + "=1s", "--features=EnableCSI", "--features="}, args[len(args)-3:])
	require.Equal(t, "/data/kubelet/pods", agents.Volumes[0].HostPath.Path, "agents read the kubelet's root from it")
}

// Helm reads no file outside of the chart. So it has copies of what it shares with kustomize and with deploy/monitoring.
func TestTheFilesOfTheChartAreCopies(t *testing.T) {
	sources := map[string]string{
		"rbac.yaml": "base/rbac.yaml", "flowcontrol.yaml": "base/flowcontrol.yaml", "networkpolicy.yaml": "base/networkpolicy.yaml",
		"movers.yaml": "components/movers/rbac.yaml", "policies.yaml": "components/pod-policy/policies.yaml",
		"podmonitor.yaml": "monitoring/podmonitor.yaml", "prometheusrule.yaml": "monitoring/prometheusrule.yaml", "lateen.json": "monitoring/lateen.json",
	}
	for name, source := range sources {
		want, err := os.ReadFile(source)
		require.NoError(t, err)
		if *update {
			require.NoError(t, os.WriteFile("chart/files/"+name, want, 0o644))
		}
		have, err := os.ReadFile("chart/files/" + name)
		require.NoError(t, err)
		require.Equal(t, string(want), string(have), "deploy/chart/files/%s is not a copy of deploy/%s: run make manifests", name, source)
	}
	files, err := os.ReadDir("chart/files")
	require.NoError(t, err)
	require.Len(t, files, len(sources))
}

func serverPod(t *testing.T, v deploy.Velero) corev1.PodTemplateSpec {
	t.Helper()
	return only[*appsv1.Deployment](t, deploy.Server(v)).Spec.Template
}

func TestPluginsAreNamedAfterTheirImages(t *testing.T) {
	long := strings.Repeat("x", 70)
	tests := map[string]struct{ images, names []string }{
		"without the tag":                      {images: []string{"velero/velero-plugin-for-aws:v1.14.0"}, names: []string{"velero-velero-plugin-for-aws"}},
		"without the registry":                 {images: []string{"registry.example/a/b_c.d:v1"}, names: []string{"a-b-c-d"}},
		"without the registry's port":          {images: []string{"registry:5000/plugin:v1"}, names: []string{"plugin"}},
		"without the digest":                   {images: []string{"a/b:v1@sha256:0123"}, names: []string{"a-b"}},
		"no longer than a label may be":        {images: []string{long}, names: []string{long[:63]}},
		"with a number where one has the name": {images: []string{"a/b:v1", "a/b:v2", long, long}, names: []string{"a-b", "a-b-2", long[:63], long[:61] + "-2"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var names []string
			for _, plugin := range serverPod(t, deploy.Velero{Plugins: test.images}).Spec.InitContainers {
				names = append(names, plugin.Name)
			}
			require.Equal(t, test.names, names)
		})
	}
}

func TestMutableImageTagsArePulledAlways(t *testing.T) {
	tests := map[string]corev1.PullPolicy{
		"velero/velero":                        corev1.PullAlways,
		"velero/velero:latest":                 corev1.PullAlways,
		"registry.example:5000/velero":         corev1.PullAlways,
		"velero/velero:v1.18.3":                corev1.PullIfNotPresent,
		"registry.example:5000/velero:v1.18.3": corev1.PullIfNotPresent,
		"velero/velero@sha256:0123":            corev1.PullIfNotPresent,
	}
	for image, want := range tests {
		require.Equal(t, want, serverPod(t, deploy.Velero{Image: image}).Spec.Containers[0].ImagePullPolicy, image)
	}
}

// The definitions come from the Velero module of the build, and the server must have the same version.
func TestTheServerIsOfTheVersionOfTheDefinitions(t *testing.T) {
	module, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	_, version, found := strings.Cut(deploy.VeleroImage, ":")
	require.True(t, found)
	require.Contains(t, string(module), "\tgithub.com/vmware-tanzu/velero "+version+"\n")
	require.Len(t, deploy.Definitions(), len(v1crds.CRDs)+len(v2alpha1crds.CRDs), "definitions of both versions of the API")
	first := deploy.Definitions()[0].(metav1.Object)
	require.Equal(t, []string{"velero", v1crds.CRDs[0].Name}, []string{first.GetLabels()["component"], first.GetName()})
}

func TestThePoliciesAllowWhatVeleroHas(t *testing.T) {
	secret := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	server := corev1.PodSpec{
		ServiceAccountName: "velero-server",
		Containers: []corev1.Container{
			{Name: "proxy", Image: "example.test/proxy:v1", EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: secret("proxy")}}}},
			{Name: "velero", Image: "mirror.test:5000/velero:v1.18.3@sha256:0123", Command: []string{"/velero"}, Args: []string{"server"}, Env: []corev1.EnvVar{
				{Name: "KEY", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: secret("key")}}},
			}},
		},
		Volumes: []corev1.Volume{
			{Name: "cloud", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cloud-credentials"}}},
			{Name: "vault", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{
				Driver: "secrets-store.csi.k8s.io", NodePublishSecretRef: &corev1.LocalObjectReference{Name: "vault"},
			}}},
			{Name: "all", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{Secret: &corev1.SecretProjection{LocalObjectReference: secret("projected")}},
			}}}},
		},
	}
	agents := corev1.PodSpec{Volumes: []corev1.Volume{
		{Name: "cloud", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "cloud-credentials"}}},
		{Name: "own", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "agents"}}},
		{Name: "certificate", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "csi.cert-manager.io"}}},
	}}
	require.Equal(t, deploy.Inherited{
		Image: "mirror.test:5000/velero", Account: "velero-server", CSIDrivers: []string{"csi.cert-manager.io", "secrets-store.csi.k8s.io"},
		Secrets: []string{"agents", "cloud-credentials", "key", "projected", "proxy", "vault"},
	}, deploy.InheritedFrom(server, agents))
	server.Containers[1].Command, server.Containers[1].Args = []string{"/wrapper"}, nil
	require.Equal(t, "mirror.test:5000/velero", deploy.InheritedFrom(server, agents).Image, "as movers inherit it")
	require.Equal(t, deploy.Inherited{Account: "default"}, deploy.InheritedFrom(corev1.PodSpec{}, corev1.PodSpec{}))
}
