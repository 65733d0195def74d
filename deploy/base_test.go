package deploy_test

import (
	"fmt"
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
	want := base(t)
	if *update {
		require.NoError(t, os.RemoveAll("base"))
		require.NoError(t, os.Mkdir("base", 0o755))
		for name, text := range want {
			require.NoError(t, os.WriteFile(filepath.Join("base", name), []byte(text), 0o644))
		}
	}
	have := map[string]string{}
	files, err := os.ReadDir("base")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join("base", file.Name()))
		require.NoError(t, err)
		have[file.Name()] = string(text)
	}
	require.Equal(t, want, have, "deploy/base is stale: run make manifests")
}

// base returns the files of the kustomize base by name.
func base(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	var names []string
	for _, object := range deploy.Objects(deploy.Options{Namespace: "velero", Image: "lateen"}) {
		name := strings.ToLower(object.GetObjectKind().GroupVersionKind().Kind) + ".yaml"
		require.NotContains(t, files, name, "two objects of one kind need names of their own")
		files[name] = string(render(t, []runtime.Object{object}))
		names = append(names, name)
	}
	slices.Sort(names)
	list, err := yaml.Marshal(map[string]any{
		"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", "resources": names,
	})
	require.NoError(t, err)
	files["kustomization.yaml"] = fmt.Sprintf("# Written by: make manifests\n%s", list)
	return files
}
