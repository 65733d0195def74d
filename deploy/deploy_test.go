package deploy_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
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
		"without more than it must have, the agent is no root and mounts nothing": {
			options: deploy.Options{Namespace: "velero", Image: "example.test/lateen:v1"},
			golden:  "default.yaml",
		},
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

// This test lists every write permission of the agent. A wider permission must be justified here too.
func TestTheAgentMayWriteOnlyThis(t *testing.T) {
	require.Equal(t, map[string][]string{
		"podvolumebackups":   {"patch"},
		"backuprepositories": {"patch"},
		"jobs":               {"create", "delete"}, "jobs/status": {"patch"},
		"podvolumerestores":      {"patch"},
		"datauploads":            {"patch", "delete"},
		"datadownloads":          {"patch", "delete"},
		"pods":                   {"create", "delete", "patch"},
		"persistentvolumeclaims": {"create", "delete", "patch"},
		"volumesnapshots":        {"create", "delete", "patch"},
		"events":                 {"create", "patch"},
		"leases":                 {"create", "update of [lateen-coordinator]"},
	}, writes(deploy.NamespaceRules()))
	require.Equal(t, map[string][]string{
		"persistentvolumeclaims": {"patch"},
		"persistentvolumes":      {"patch"},
		"volumesnapshots":        {"delete"},
		"volumesnapshotcontents": {"create", "delete", "patch"}, "volumesnapshotcontents/status": {"patch"},
	}, writes(deploy.ClusterRules()))
}

// writes returns the verbs by resource that change objects.
func writes(rules []rbacv1.PolicyRule) map[string][]string {
	reading := map[string]bool{"get": true, "list": true, "watch": true}
	all := map[string][]string{}
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			if reading[verb] {
				continue
			}
			if len(rule.ResourceNames) > 0 {
				verb = fmt.Sprintf("%s of %v", verb, rule.ResourceNames)
			}
			for _, resource := range rule.Resources {
				all[resource] = append(all[resource], verb)
			}
		}
	}
	return all
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
