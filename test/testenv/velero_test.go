package testenv

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/lateen-project/lateen/test/cluster"
)

var update = flag.Bool("update", false, "write what velero install prints into the files")

// noResources are the flags for a server without requests and limits, which the small nodes of tests have no room for.
var noResources = []string{
	"--velero-pod-cpu-request=0", "--velero-pod-cpu-limit=0", "--velero-pod-mem-request=0", "--velero-pod-mem-limit=0",
}

// An environment has what the real `velero install` installs.
func TestAnEnvironmentIsWhatVeleroInstalls(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(secret, []byte("credentials"), 0o600))
	for file, flags := range map[string][]string{
		"installed.json": {"--no-secret"}, "installed-with-credentials.json": {"--secret-file=" + secret},
	} {
		t.Run(file, func(t *testing.T) {
			objects := velero(t, slices.Concat(flags, noResources)...)
			if *update {
				require.NoError(t, os.WriteFile(file, objects, 0o600))
			}
			known, err := os.ReadFile(file)
			require.NoError(t, err)
			require.JSONEq(t, string(objects), string(known))
		})
	}
}

// velero returns the objects that velero install prints, without the resource definitions.
func velero(t *testing.T, flags ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Patience)
	defer cancel()
	binary, err := cluster.FindBinary("velero")
	require.NoError(t, err)
	home := t.TempDir()
	kubeconfig := filepath.Join(home, "kubeconfig") // A dry run connects to no server, but wants to know one.
	require.NoError(t, os.WriteFile(kubeconfig, []byte(`{"clusters":[{"name":"c","cluster":{"server":"http://127.0.0.1:1"}}],
		"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`), 0o600))
	command := exec.CommandContext(ctx, binary, append([]string{
		"install", "--dry-run", "--output=json", "--kubeconfig=" + kubeconfig, "--namespace=" + printedNamespace,
		"--image=" + printedImage, "--kubelet-root-dir=" + printedKubeletRoot,
		"--provider=velero.io/fs", "--bucket=bucket", "--backup-location-config=fspath=" + printedRepositoryDir,
		"--use-node-agent", "--use-volume-snapshots=false", "--plugins=image-of-plugin:v1",
	}, flags...)...)
	command.Env = []string{"HOME=" + home}
	output, err := command.Output()
	require.NoError(t, err, "%s", output)
	var list struct {
		Items []*unstructured.Unstructured `json:"items"`
	}
	require.NoError(t, json.Unmarshal(output, &list))
	list.Items = slices.DeleteFunc(list.Items, func(object *unstructured.Unstructured) bool {
		return object.GetKind() == "CustomResourceDefinition"
	})
	objects, err := json.MarshalIndent(list, "", "  ")
	require.NoError(t, err)
	return append(objects, '\n')
}
