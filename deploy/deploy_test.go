package deploy_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/deploy"
)

var update = flag.Bool("update", false, "rewrite the golden files from what the package makes")

func TestInstallation(t *testing.T) {
	cases := map[string]struct {
		options deploy.Options
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
			options: deploy.Options{Namespace: "velero", Image: "example.test/lateen:v1", PodPolicy: deploy.PodPolicyPrivileged, Inherited: deploy.Velero{Image: deploy.VeleroImage, Account: "backup"}.Inherited()},
			golden:  "podpolicy.yaml",
		},
		"with agents on Windows nodes, these have a DaemonSet of their own, without what only Linux has": {
			options: deploy.Options{Namespace: "velero", Image: "example.test/lateen:v1", Windows: true},
			golden:  "windows.yaml",
		},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			got := render(t, deploy.Objects(test.options))
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

func TestRBACRulesOfCopies(t *testing.T) {
	for golden, copies := range map[string]deploy.Copies{
		"copies.yaml":            {Secrets: []string{"kms-key"}, ConfigMaps: []string{"kms-config"}, From: []string{"shop", "bank"}},
		"copies-everywhere.yaml": {Secrets: []string{"kms-key", "kms-ca"}, From: []string{deploy.AllNamespaces}},
	} {
		got := render(t, deploy.CopyAccess("velero", copies))
		file := filepath.Join("testdata", golden)
		if *update {
			require.NoError(t, os.WriteFile(file, got, 0o644))
		}
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got))
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
