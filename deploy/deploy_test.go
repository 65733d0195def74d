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
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/deploy"
	"github.com/lateen-project/lateen/exposer/api"
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
				Namespace:                 "backups",
				Image:                     "example.test/lateen:v1",
				NodeAgentConfigMap:        "node-agent-config",
				BackupRepositoryConfigMap: "repository-config",
				MaintenanceConfigMap:      "maintenance-config",
				MaintenanceFrequency:      time.Hour,
				KubeletRoot:               "/data/kubelet",
				HostPath:                  true,
				PriorityClass:             "backup-agent",
				Features:                  "EnableCSI",
				Labels:                    map[string]string{"team": "storage", "role": "may-not-be-changed"},
				Annotations:               map[string]string{"prometheus.io/scrape": "false", "team": "storage"},
				Resources: &corev1.ResourceRequirements{
					Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")},
				},
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
				Labels: map[string]string{"team": "storage"}, Annotations: map[string]string{"note": "mine"},
				Resources: deploy.DefaultResources(), Plugins: []string{"velero/velero-plugin-for-aws:v1.14.0"}, Args: []string{"--features="},
			}),
			golden: "server.yaml",
		},
		"Velero's server, with an existing ServiceAccount and without locations": {
			objects: deploy.Server(deploy.Velero{Namespace: "velero", Image: deploy.VeleroImage, Account: "backup", NoLocation: true, NoSnapshots: true}),
			golden:  "server-plain.yaml",
		},
		"agents of Velero that are adopted": {
			objects: []runtime.Object{&appsv1.DaemonSet{
				TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"}, Spec: appsv1.DaemonSetSpec{Template: adopted(t)},
			}},
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
func TestNoDefaultRoleReadsSecrets(t *testing.T) {
	for _, rule := range append(deploy.NamespaceRules(), deploy.ClusterRules()...) {
		require.NotContains(t, rule.Resources, "secrets")
	}
	require.Empty(t, deploy.CopyAccess("velero", deploy.Copies{}))
}

// A kind of transfers needs rights of agents and of movers, and the policy must allow it as an owner of movers.
func TestTheManifestsHaveEveryKind(t *testing.T) {
	movers, ok := deploy.MoverAccess("velero", deploy.Movers{Account: true})[1].(*rbacv1.Role)
	require.True(t, ok)
	owners := ""
	for _, object := range deploy.PodPolicies(deploy.PodPolicy{Namespace: "velero"}) {
		if policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy); ok {
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

func TestTheAgentHasNoWildcardRules(t *testing.T) {
	for _, rule := range append(deploy.NamespaceRules(), deploy.ClusterRules()...) {
		for _, word := range slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs) {
			require.NotContains(t, word, "*")
		}
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
