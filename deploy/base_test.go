package deploy_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/deploy"
)

// The kustomize base equals the objects of the package: one file for each object, and the list of the files.
func TestTheBaseMatchesThePackage(t *testing.T) {
	requireFiles(t, "base", base(t))
}

// The components of kustomize equal the objects of the package, and give agents the same arguments.
func TestTheComponentsMatchThePackage(t *testing.T) {
	movers := files(t, deploy.MoverAccess("velero", deploy.Movers{Account: true}))
	movers["kustomization.yaml"] = kustomization(t, "v1alpha1", "Component", movers, map[string]any{
		"target": map[string]string{"kind": "DaemonSet"},
		"patch":  "- {op: add, path: /spec/template/spec/containers/0/args/-, value: " + deploy.MoverAccountFlag + "=" + deploy.MoverAccountName + "}\n",
	})
	requireFiles(t, "components/movers", movers)
	server := deploy.Velero{Image: deploy.VeleroImage, Credentials: []byte("of the bucket")}
	policies := deploy.PodPolicies(deploy.PodPolicyOf("velero", "/var/lib/kubelet/pods", deploy.PodPolicyRestricted,
		deploy.Movers{Account: true}, deploy.Copies{}, server.Inherited()))
	policy := map[string]string{"policies.yaml": string(render(t, policies))}
	policy["kustomization.yaml"] = kustomization(t, "v1alpha1", "Component", policy)
	requireFiles(t, "components/pod-policy", policy)
}

// The chart reads what it shares with the package and with deploy/monitoring from files.
func TestTheFilesOfTheChartMatchThePackage(t *testing.T) {
	dashboard, err := os.ReadFile("monitoring/lateen.json")
	require.NoError(t, err)
	requireFiles(t, "chart/files", map[string]string{
		"role.yaml":        document(t, deploy.NamespaceRules()),
		"clusterrole.yaml": document(t, deploy.ClusterRules()),
		"mover-role.yaml":  document(t, deploy.MoverRules()),
		"podpolicies.yaml": string(render(t, deploy.PodPolicies(deploy.PodPolicy{
			Namespace: "{{ .Release.Namespace }}", PodsDir: "{{ .Values.nodeAgent.podVolumePath }}",
			Privileged:     `{{ eq .Values.podPolicy "` + deploy.PodPolicyPrivileged + `" }}`,
			Account:        `{{ include "lateen.policyAccount" . }}`,
			Image:          `{{ include "lateen.policyImage" . }}`,
			Secrets:        "{{ toJson .Values.podPolicyAllows.secrets }}",
			Drivers:        "{{ toJson .Values.podPolicyAllows.csiDrivers }}",
			CopySecrets:    "{{ toJson .Values.podPolicyAllows.copySecrets }}",
			CopyConfigMaps: "{{ toJson .Values.podPolicyAllows.copyConfigMaps }}",
		}))),
		"podmonitor.yaml":     document(t, spec(t, "monitoring/podmonitor.yaml")),
		"prometheusrule.yaml": document(t, spec(t, "monitoring/prometheusrule.yaml")),
		"lateen.json":         string(dashboard),
	})
}

// requireFiles compares a folder with the files that it should have, by name. With -update it writes the folder.
func requireFiles(t *testing.T, folder string, want map[string]string) {
	t.Helper()
	if *update {
		require.NoError(t, os.RemoveAll(folder))
		require.NoError(t, os.Mkdir(folder, 0o755))
		for name, text := range want {
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
		}
	}
	have := map[string]string{}
	files, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(folder, file.Name()))
		require.NoError(t, err)
		have[file.Name()] = string(text)
	}
	require.Equal(t, want, have, "deploy/%s is stale: run make manifests", folder)
}

func document(t *testing.T, value any) string {
	t.Helper()
	text, err := yaml.Marshal(value)
	require.NoError(t, err)
	return string(text)
}

// spec returns the spec of the object in a file.
func spec(t *testing.T, file string) any {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	var object struct {
		Spec any `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal(text, &object))
	return object.Spec
}

// base returns the files of the kustomize base by name.
func base(t *testing.T) map[string]string {
	t.Helper()
	all := files(t, deploy.Objects(deploy.Options{Namespace: "velero", Image: "lateen"}))
	all["kustomization.yaml"] = kustomization(t, "v1beta1", "Kustomization", all)
	return all
}

// files returns a file of each object, by name.
func files(t *testing.T, objects []runtime.Object) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, object := range objects {
		name := strings.ToLower(object.GetObjectKind().GroupVersionKind().Kind) + ".yaml"
		if all[name] != "" { // a second object of the kind
			name = "lease-" + name
		}
		require.NotContains(t, all, name, "a third object of a kind needs a name of its own")
		all[name] = string(render(t, []runtime.Object{object}))
	}
	return all
}

func kustomization(t *testing.T, version, kind string, resources map[string]string, patches ...map[string]any) string {
	t.Helper()
	content := map[string]any{
		"apiVersion": "kustomize.config.k8s.io/" + version, "kind": kind, "resources": slices.Sorted(maps.Keys(resources)),
	}
	if len(patches) > 0 {
		content["patches"] = patches
	}
	return "# Written by: make manifests\n" + document(t, content)
}
