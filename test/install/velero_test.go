package install

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/exposer/api"
	"github.com/lateen-project/lateen/test/cluster"
	"github.com/lateen-project/lateen/test/fixture"
	"github.com/lateen-project/lateen/test/testenv"
)

var update = flag.Bool("update", false, "rewrite the golden file from what both commands print, keeping the reasons")

// difference is where `lateen install` makes something else than `velero install` of the same flags.
type difference struct {
	Velero json.RawMessage `json:"velero,omitempty"` // what Velero has there; absent: nothing
	Lateen json.RawMessage `json:"lateen,omitempty"` // what Lateen has there; absent: nothing
	Why    string          `json:"why"`
}

// Every difference from what Velero's own command makes of the same flags has a reason.
func TestDifferencesFromVelerosOwnInstallation(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience) // two processes
	defer cancel()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	require.NoError(t, cluster.WriteKubeconfig(plane.Admin(), kubeconfig, "velero"))
	same := append(velero(t),
		"--image=velero/velero:v1.18.3", "--prefix=west", "--backup-location-config=region=eu-central-1",
		"--snapshot-location-config=region=eu-central-1", "--pod-labels=team=storage", "--pod-annotations=team=storage",
		"--sa-annotations=role=backup", "--features=EnableCSI", "--default-volumes-to-fs-backup",
		"--server-priority-class-name=server", "--node-agent-priority-class-name=agent",
		"--use-node-agent", "--use-node-agent-windows", "--kubeconfig="+kubeconfig, "--dry-run", "--output=json")
	theirs, err := fixture.Command(ctx, t, "velero", append([]string{"install"}, same...)...).Output()
	require.NoError(t, err)
	ours, err := fixture.Command(ctx, t, "lateen", append([]string{"install", "--lateen-image=example.test/lateen:v1"}, same...)...).Output()
	require.NoError(t, err)

	found := map[string]difference{}
	compare(found, "", byName(t, string(theirs)), byName(t, string(ours)))
	require.NotEmpty(t, found)
	const golden = "testdata/differences.yaml"
	known := map[string]difference{}
	text, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.NoError(t, yaml.UnmarshalStrict(text, &known))
	for path, each := range found {
		each.Why = known[path].Why
		found[path] = each
	}
	if *update {
		text, err := yaml.Marshal(found)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(golden, text, 0o644))
	}
	for path, each := range found {
		require.NotEmpty(t, each.Why, "no reason is given for %s: Velero has %s, Lateen has %s", path, each.Velero, each.Lateen)
	}
	require.Equal(t, known, found)
}

// byName are the printed objects by kind and name, without the label that Lateen puts on all that it makes.
func byName(t *testing.T, text string) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, object := range printed(t, text) {
		labels := object.GetLabels()
		delete(labels, api.LabelInstalled)
		object.SetLabels(labels)
		key := object.GetKind() + " " + object.GetName()
		require.NotContains(t, all, key)
		all[key] = object.Object
	}
	return all
}

// compare collects what differs below path. What only one side has is one difference, however large; of an object
// that only one has, it is enough to know that.
func compare(found map[string]difference, path string, theirs, ours any) {
	if isObject := strings.Count(path, "/") == 1; isObject && theirs == nil {
		found[path] = difference{Lateen: json.RawMessage(`"has it"`)}
		return
	}
	left, isMap := theirs.(map[string]any)
	right, areMaps := ours.(map[string]any)
	if isMap && areMaps {
		all := maps.Clone(left)
		maps.Copy(all, right)
		for _, key := range slices.Sorted(maps.Keys(all)) {
			compare(found, path+"/"+key, left[key], right[key])
		}
		return
	}
	one, isList := theirs.([]any)
	other, areLists := ours.([]any)
	if isList && areLists && len(one) == len(other) && len(one) > 0 {
		if _, ofMaps := one[0].(map[string]any); ofMaps {
			for index := range one {
				compare(found, path+"/"+strconv.Itoa(index), one[index], other[index])
			}
			return
		}
	}
	if a, b := text(theirs), text(ours); string(a) != string(b) {
		found[path] = difference{Velero: a, Lateen: b}
	}
}

// text is a value as JSON, without what is empty; nothing if nothing else is left.
func text(value any) json.RawMessage {
	if value == nil {
		return nil
	}
	object := map[string]any{"value": value}
	unstructured.RemoveNestedField(object, "value", "metadata", "creationTimestamp")
	raw, err := json.Marshal(object["value"])
	if err != nil || string(raw) == "{}" {
		return nil
	}
	return raw
}

func TestUninstallingRemovesAllThatWasInstalled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience) // a control plane of its own: definitions are everybody's
	defer cancel()
	own, err := cluster.Start(ctx, cluster.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, own.Stop()) })
	s := envOf(t, own)
	options := []string{"--restrict-movers", "--pod-policy=restricted"}
	s.install(options...)
	objects := printed(t, first(s.install(append(options, "--dry-run", "-o=json")...)))
	definitions := s.dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	newer, err := definitions.Patch(fixture.Soon(t), "datauploads.velero.io", types.JSONPatchType,
		[]byte(`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/novel","value":{"type":"string"}}]`), metav1.PatchOptions{})
	require.NoError(t, err)
	out, _ := s.install(append(options, "--apply")...)
	require.Contains(t, out, "CustomResourceDefinition datauploads.velero.io is of a newer Velero (it has v2alpha1.spec.novel), unchanged\n")
	kept, err := definitions.Get(fixture.Soon(t), newer.GetName(), metav1.GetOptions{})
	require.NoError(t, err)
	require.Equal(t, newer.Object["spec"], kept.Object["spec"])

	w, err := testenv.Open(fixture.Soon(t), own.Admin(), s.namespace)
	require.NoError(t, err)
	_, err = w.Backup(fixture.Soon(t), "nightly")
	require.NoError(t, err)

	out, reported := s.fails("no\n", "uninstall")
	require.Contains(t, reported, "nothing removed")
	require.Contains(t, out, "Deployment velero\n")
	for _, object := range objects {
		_, err := s.found(object)
		require.NoError(t, err)
	}

	s.succeeds("y\n", "uninstall")
	for _, object := range objects {
		_, err := s.found(object)
		require.True(t, apierrors.IsNotFound(err), "%s %s is left: %v", object.GetKind(), object.GetName(), err)
	}
	_, reported = s.fails("y\n", "uninstall")
	require.Contains(t, reported, "no object has label")
}

func TestUninstallingLeavesWhatWasThereBeforeAndSaysWhatStaysWithIt(t *testing.T) {
	s := newEnv(t)
	s.createNamespace(s.namespace)
	_, err := s.kube.CoreV1().ServiceAccounts(s.namespace).Create(fixture.Soon(t), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "velero"}}, metav1.CreateOptions{})
	require.NoError(t, err)
	s.install("--apply")
	s.install("--apply")
	defer s.holds("restores", "Restore", "restores.velero.io/external-resources-finalizer")()
	out, _ := s.succeeds("", "uninstall", "--force")
	require.Contains(t, out, "1 restores are kept with the namespace; only deployments velero can remove their finalizers\n")
	for _, object := range printed(t, first(s.install("--dry-run", "-o=json"))) {
		_, err := s.found(object)
		switch kind, name := object.GetKind(), object.GetName(); {
		case kind == "CustomResourceDefinition": // whoever installed first has made them
		case kind == "Namespace", kind == "ServiceAccount" && name == "velero":
			require.NoError(t, err, "%s %s was there before", kind, name)
		default:
			require.True(t, apierrors.IsNotFound(err), "%s %s is left: %v", kind, name, err)
		}
	}
}

// letGo is the remedy that the program names.
const letGo = `{"metadata":{"finalizers":null}}`

// velero18 are the versions in which Velero 1.18 has its resources.
func velero18(resource string) schema.GroupVersionResource {
	version := "v1"
	if resource == "datauploads" {
		version = "v2alpha1"
	}
	return schema.GroupVersionResource{Group: "velero.io", Version: version, Resource: resource}
}

// holds makes a custom resource of Velero that has a finalizer.
func (e *env) holds(resource, kind, finalizer string) (release func()) {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": velero18(resource).GroupVersion().String(), "kind": kind,
		"metadata": map[string]any{"name": "held", "namespace": e.namespace, "finalizers": []any{finalizer}},
		"spec":     required(kind),
	}}
	require.NoError(e, testenv.Apply(fixture.Soon(e.T), plane.Admin(), object))
	return func() {
		e.Helper()
		_, err := e.dynamic.Resource(velero18(resource)).Namespace(e.namespace).Patch(fixture.Soon(e.T), "held", types.MergePatchType, []byte(letGo), metav1.PatchOptions{})
		require.NoError(e, err)
	}
}

// required is what a definition asks of the specification.
func required(kind string) map[string]any {
	switch kind {
	case "Restore":
		return map[string]any{}
	case "DataUpload":
		return map[string]any{"backupStorageLocation": "default", "operationTimeout": "1h", "snapshotType": "CSI", "sourceNamespace": "app", "sourcePVC": "data"}
	}
	return map[string]any{
		"backupStorageLocation": "default", "node": "nowhere", "pod": map[string]any{}, "repoIdentifier": "", "volume": "data",
	}
}

func TestUninstallNamesTheFinalizerItsControllerAndTheRemedy(t *testing.T) {
	s := newEnv(t)
	_, warnings := s.install("--server-priority-class-name=no-such-server", "--node-agent-priority-class-name=no-such-agent") // so that none has a pod
	require.Contains(t, warnings, "--server-priority-class-name: PriorityClass no-such-server does not exist")
	require.Contains(t, warnings, "--node-agent-priority-class-name: PriorityClass no-such-agent does not exist")
	require.Equal(t, "no-such-server", s.server().Spec.Template.Spec.PriorityClassName)
	require.Equal(t, "no-such-agent", s.agents().Spec.Template.Spec.PriorityClassName)
	for _, each := range []struct{ resource, kind, finalizer, workload string }{
		{"restores", "Restore", "restores.velero.io/external-resources-finalizer", "deployments velero"},
		{"podvolumebackups", "PodVolumeBackup", api.FinalizerPodVolume, "daemonsets node-agent"},
	} {
		release := s.holds(each.resource, each.kind, each.finalizer)
		_, reported := s.fails("", "uninstall", "--force")
		require.Contains(t, reported, fmt.Sprintf("remove 1 %s of namespace %s: no pod of %s is running to remove their finalizers: held (%s)",
			each.resource, s.namespace, each.workload, each.finalizer))
		require.Contains(t, reported, fmt.Sprintf("kubectl -n %s patch %s NAME --type=merge -p '%s'", s.namespace, each.resource, letGo))
		if each.kind == "Restore" {
			s.server() // what might let it go stays until it has
		}
		release()
	}
	out, _ := s.succeeds("", "uninstall", "--force")
	require.Contains(t, out, "DaemonSet node-agent removed\n")
	_, err := s.kube.CoreV1().Namespaces().Get(fixture.Soon(t), s.namespace, metav1.GetOptions{})
	require.True(t, apierrors.IsNotFound(err))
}

// The API server names the priority level of a request in a header of its answer (KEP-1040).
func TestAgentsHaveAPriorityLevelOfTheirOwn(t *testing.T) {
	s := newEnv(t)
	s.install()
	levels := s.kube.FlowcontrolV1().PriorityLevelConfigurations()
	own, err := levels.Get(fixture.Soon(t), "lateen-"+s.namespace, metav1.GetOptions{})
	require.NoError(t, err)
	election, err := levels.Get(fixture.Soon(t), "leader-election", metav1.GetOptions{})
	require.NoError(t, err)
	account, err := plane.ServiceAccount(fixture.Soon(t), s.namespace, "lateen")
	require.NoError(t, err)
	agent := rest.CopyConfig(account)
	var level string
	agent.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return promhttp.RoundTripperFunc(func(request *http.Request) (*http.Response, error) {
			answer, err := next.RoundTrip(request)
			if err == nil {
				level = answer.Header.Get("X-Kubernetes-Pf-Prioritylevel-Uid")
			}
			return answer, err
		})
	})
	client, err := rest.HTTPClientFor(agent)
	require.NoError(t, err)
	for path, want := range map[string]string{
		"/api/v1/namespaces/" + s.namespace + "/pods":                                                                         string(own.UID),
		"/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1":                                                                   string(own.UID),
		"/apis/coordination.k8s.io/v1/namespaces/" + s.namespace + "/leases/lateen-coordinator":                               string(election.UID),
		"/apis/coordination.k8s.io/v1/namespaces/" + s.namespace + "/leases?fieldSelector=metadata.name%3Dlateen-coordinator": string(own.UID),
	} {
		// A FlowSchema is in force a moment after it was created.
		require.Eventually(t, func() bool {
			request, err := http.NewRequestWithContext(fixture.Soon(t), http.MethodGet, agent.Host+path, nil)
			require.NoError(t, err)
			answer, err := client.Do(request)
			require.NoError(t, err)
			require.NoError(t, answer.Body.Close())
			return level == want
		}, testenv.Patience, 100*time.Millisecond, path)
	}
}
