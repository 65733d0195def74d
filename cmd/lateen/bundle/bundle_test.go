package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/cmd/lateen/cli"
)

const objects = `
apiVersion: v1
kind: Pod
metadata:
  name: node-agent-1
  namespace: velero
  annotations: {lateen.dev/adopted-from: '{"env":[{"name":"AWS_SECRET_ACCESS_KEY","value":"hunter2"}]}'}
spec:
  containers:
  - name: node-agent
    env: [{name: AWS_SECRET_ACCESS_KEY, value: hunter2}, {name: NODE_NAME, value: node-1}]
status:
  containerStatuses: [{name: node-agent, restartCount: 1}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: node-agent, namespace: velero}
data: {config.json: '{"backupPVC":{"gold":{"secretNames":["csi"]}}}', password: hunter2}
---
apiVersion: velero.io/v2alpha1
kind: DataUpload
metadata: {name: running, namespace: velero}
status: {phase: InProgress}
---
apiVersion: velero.io/v2alpha1
kind: DataUpload
metadata: {name: failed, namespace: velero}
status: {phase: Failed}
---
apiVersion: velero.io/v2alpha1
kind: DataUpload
metadata: {name: completed, namespace: velero}
status: {phase: Completed}
---
apiVersion: velero.io/v2alpha1
kind: DataUpload
metadata: {name: of-another, namespace: elsewhere}
`

// unpacked writes a bundle of the objects, without a right to read Events, and returns its files.
func unpacked(t *testing.T) (files map[string]string, printed string) {
	t.Helper()
	var all []runtime.Object
	for text := range strings.SplitSeq(objects, "---\n") {
		var object unstructured.Unstructured
		encoded, err := yaml.YAMLToJSON([]byte(text))
		require.NoError(t, err)
		require.NoError(t, object.UnmarshalJSON(encoded))
		all = append(all, &object)
	}
	kinds := map[schema.GroupVersionResource]string{}
	for _, resource := range append(namespaced(), clusterScoped()...) {
		kinds[resource] = resource.Resource + "List"
	}
	generic := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, all...)
	generic.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
	generic.PrependReactor("*", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { panic("a Secret is read") })
	run := func(_ context.Context, out io.Writer, args ...string) error {
		fmt.Fprintf(out, "output of %s", strings.Join(args, " "))
		if args[0] == "check" {
			return errors.New("1 problem")
		}
		return nil
	}
	var out, archive bytes.Buffer
	client := &cli.Client{Kube: fake.NewClientset(), Dynamic: generic, Namespace: "velero", Out: &out}
	require.NoError(t, write(t.Context(), client, &archive, time.Now(), run))
	uncompressed, err := gzip.NewReader(&archive)
	require.NoError(t, err)
	files = map[string]string{}
	for reader := tar.NewReader(uncompressed); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files, out.String()
		}
		require.NoError(t, err)
		text, err := io.ReadAll(reader)
		require.NoError(t, err)
		files[strings.TrimPrefix(header.Name, "bundle/")] = string(text)
	}
}

func TestABundleHasWhatAReportNeeds(t *testing.T) {
	files, printed := unpacked(t)
	require.Equal(t, "output of status -o=json", files["status.json"])
	require.Equal(t, "output of check", files["check.txt"])
	require.Equal(t, "output of explain du/running", files["explain/du-running.txt"])
	require.Contains(t, files, "explain/du-failed.txt")
	require.NotContains(t, files, "explain/du-completed.txt")
	require.Contains(t, files["objects/datauploads.velero.io.yaml"], "name: completed")
	require.NotContains(t, files["objects/datauploads.velero.io.yaml"], "of-another")
	require.Equal(t, "fake logs", files["logs/node-agent-1/node-agent.log"])
	require.Contains(t, files, "logs/node-agent-1/node-agent.previous.log")
	require.Contains(t, files, "objects/nodes.yaml")
	require.Equal(t, "events: forbidden\n", files["unreadable.txt"])
	require.Contains(t, printed, "Not readable, see unreadable.txt: 1\n")
}

func TestABundleHasNoCredential(t *testing.T) {
	files, _ := unpacked(t)
	require.NotContains(t, strings.Join(slices.Collect(maps.Values(files)), ""), "hunter2")
	require.NotContains(t, slices.Collect(maps.Keys(files)), "objects/secrets.yaml")
	require.Contains(t, files["objects/pods.yaml"], "value: node-1")
	require.Contains(t, files["objects/configmaps.yaml"], "secretNames", "of the configuration, only names of Secrets are known")
}
