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
    env: [{name: AWS_SECRET_ACCESS_KEY, value: hunter2}, {name: AZURE_STORAGE_KEY, value: hunter2}, {name: NODE_NAME, value: node-1}, {name: HTTPS_PROXY, value: 'http://user:hunter2@proxy:3128'}]
    envFrom: [{secretRef: {name: cloud-credentials}}]
status:
  containerStatuses: [{name: node-agent, restartCount: 1}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: node-agent, namespace: velero}
data: {config.json: '{"backupPVC":{"gold":{"secretNames":["csi"]}}}', password: hunter2, cloud: "[default]\naws_secret_access_key = hunter2\n", gcp: "{\n  \"private_key\": \"hunter2\"\n}"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: modifiers, namespace: velero}
data:
  rules: |
    version: v1 # the password is hunter2
    resourceModifierRules:
    - patches:
      - path: /spec/template/password
        operation: replace
        value: hunter2
    - passphrase: |
        hunter2
      env:
      - name: DB_PASS
        value: hunter2
      encryptionKey: hunter2
      untouched: kept
  broken: "clientKey: hunter2\n- x"
  rclone: "pass = hunter2\ndb.pass=hunter2\n\"sas\": \"hunter2\",\nstorage_key: hunter2\n"
  types: "token: a\npassword: 8675309\npasswords: [hunter2]\ncredentials: {data: hunter2}\nsecretNames: [kept]"
  commented: "a: b # token: hunter2"
  pem: "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----"
---
apiVersion: velero.io/v1
kind: BackupStorageLocation
metadata: {name: default, namespace: velero, annotations: {example.io/api-token: hunter2}}
spec: {config: {s3Url: 'https://user:hunter2@minio', accessKey: hunter2}, credential: {name: cloud-credentials, key: cloud}}
---
apiVersion: velero.io/v1
kind: Backup
metadata:
  name: nightly
  namespace: velero
  annotations: {kubectl.kubernetes.io/last-applied-configuration: '{"spec":{"hooks":{"resources":[{"pre":[{"exec":{"command":["mysqldump","-phunter2"]}}]}]}}}'}
spec: {hooks: {resources: [{pre: [{exec: {container: db, command: [mysqldump, -phunter2]}}]}]}}
---
apiVersion: velero.io/v1
kind: Restore
metadata: {name: hooked, namespace: velero}
spec: {hooks: {resources: [{postHooks: [{init: {initContainers: [{name: db, image: mysql, command: [mysql, -phunter2], args: [hunter2]}]}}]}]}}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: smb}
spec: {mountOptions: [vers=3.0, password=hunter2]}
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

// filesOf writes a bundle and returns its files.
func filesOf(ctx context.Context, t *testing.T, client *cli.Client, run Run) map[string]string {
	t.Helper()
	var archive bytes.Buffer
	require.NoError(t, write(ctx, client, &archive, time.Now(), run))
	uncompressed, err := gzip.NewReader(&archive)
	require.NoError(t, err)
	files := map[string]string{}
	for reader := tar.NewReader(uncompressed); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		text, err := io.ReadAll(reader)
		require.NoError(t, err)
		files[strings.TrimPrefix(header.Name, "bundle/")] = string(text)
	}
}

func withKinds(all ...runtime.Object) *dynamicfake.FakeDynamicClient {
	kinds := map[schema.GroupVersionResource]string{}
	for _, resource := range append(namespaced(), clusterScoped()...) {
		kinds[resource] = resource.Resource + "List"
	}
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), kinds, all...)
}

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
	generic := withKinds(all...)
	generic.PrependReactor("list", "events", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("forbidden") })
	generic.PrependReactor("*", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) { panic("a Secret is read") })
	run := func(_ context.Context, out, _ io.Writer, args ...string) error {
		if slices.Contains(args, "-o=json") {
			fmt.Fprintln(out, `{"podAnnotations": {"example.com/api-token": "hunter2"}}`)
			return nil
		}
		fmt.Fprintf(out, "output of %s", strings.Join(args, " "))
		if args[0] == "check" {
			fmt.Fprintln(out, "\n  podAnnotations:\n    example.com/api-token: hunter2")
			return errors.New("1 problem")
		}
		return nil
	}
	var out bytes.Buffer
	client := &cli.Client{Kube: fake.NewClientset(), Dynamic: generic, Namespace: "velero", Out: &out}
	return filesOf(t.Context(), t, client, run), out.String()
}

func TestABundleHasWhatAReportNeeds(t *testing.T) {
	files, printed := unpacked(t)
	require.JSONEq(t, `{"podAnnotations": {"example.com/api-token": "REDACTED"}}`, files["check.json"])
	require.Equal(t, "output of check\n  podAnnotations:\nREDACTED\n", files["check.txt"])
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
	require.NotContains(t, files["objects/configmaps.yaml"], "8675309")
	require.Contains(t, files["objects/configmaps.yaml"], "- kept")
	require.NotContains(t, slices.Collect(maps.Keys(files)), "objects/secrets.yaml")
	require.Contains(t, files["objects/pods.yaml"], "value: node-1")
	require.Contains(t, files["objects/pods.yaml"], "name: cloud-credentials")
	require.Contains(t, files["objects/configmaps.yaml"], "untouched: kept")
	require.Contains(t, files["objects/configmaps.yaml"], "secretNames", "of the configuration, only names of Secrets are known")
	require.Contains(t, files["objects/backupstoragelocations.velero.io.yaml"], "key: cloud")
}

func TestAnInterruptedBundleHasWhatWasRead(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	run := func(ctx context.Context, out, _ io.Writer, _ ...string) error {
		fmt.Fprint(out, "output")
		return ctx.Err()
	}
	generic := withKinds()
	generic.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, ctx.Err() })
	files := filesOf(ctx, t, &cli.Client{Kube: fake.NewClientset(), Dynamic: generic, Namespace: "velero", Out: io.Discard}, run)
	require.Equal(t, "output", files["status.txt"])
	require.Contains(t, files["unreadable.txt"], "pods: context canceled\n")
}

func TestWhatTellsMostIsKept(t *testing.T) {
	object := func(kind, phase string, labels map[string]string) *unstructured.Unstructured {
		object := &unstructured.Unstructured{Object: map[string]any{"kind": kind, "status": map[string]any{
			"phase": phase, "containerStatuses": []any{map[string]any{"restartCount": int64(0), "ready": true}},
		}}}
		object.SetLabels(labels)
		return object
	}
	agent := map[string]string{"role": "node-agent"}
	require.Equal(t, 0, rank(object("Pod", "Running", nil)))
	require.Equal(t, 1, rank(object("Pod", "Running", agent)))
	require.Equal(t, 0, rank(object("Pod", "Pending", agent)))
	require.Equal(t, 1, rank(object("ConfigMap", "", map[string]string{"velero.io/resource-usage": "DataUpload"})))
	for want, phase := range []string{"InProgress", "Canceled", "Completed"} {
		require.Equal(t, want, rank(object("DataUpload", phase, nil)))
	}
}
