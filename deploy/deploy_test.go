package deploy_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
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
		"with the host path, a ConfigMap and another kubelet root, each shows where it belongs": {
			options: deploy.Options{
				Namespace:          "backups",
				Image:              "example.test/lateen:v1",
				NodeAgentConfigMap: "node-agent-config",
				KubeletRoot:        "/data/kubelet",
				HostPath:           true,
			},
			golden: "hostpath.yaml",
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

// What the agent may write is what this test lists; a wider right has to be argued for here too.
func TestTheAgentMayWriteOnlyThis(t *testing.T) {
	writes := map[string][]string{}
	reading := map[string]bool{"get": true, "list": true, "watch": true}
	for _, rule := range deploy.NamespaceRules() {
		for _, verb := range rule.Verbs {
			if !reading[verb] {
				writes[rule.Resources[0]] = append(writes[rule.Resources[0]], verb)
			}
		}
	}
	require.Equal(t, map[string][]string{
		"podvolumebackups": {"patch"},
		"pods":             {"create", "delete", "patch"},
		"events":           {"create", "patch"},
	}, writes)
	for _, rule := range deploy.ClusterRules() {
		for _, verb := range rule.Verbs {
			require.True(t, reading[verb], "%s %v in the whole cluster", verb, rule.Resources)
		}
	}
}

func render(t *testing.T, objects []runtime.Object) []byte {
	t.Helper()
	documents := make([][]byte, 0, len(objects))
	for _, object := range objects {
		document, err := yaml.Marshal(object)
		require.NoError(t, err)
		documents = append(documents, document)
	}
	return bytes.Join(documents, []byte("---\n"))
}
