package install

import (
	"context"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/exposer/api"
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
	require.NoError(t, plane.WriteKubeconfig(plane.Admin(), kubeconfig, "velero"))
	same := append(velero(t),
		"--image=velero/velero:v1.18.3", "--prefix=west", "--backup-location-config=region=eu-central-1",
		"--snapshot-location-config=region=eu-central-1", "--pod-labels=team=storage", "--pod-annotations=team=storage",
		"--sa-annotations=role=backup", "--features=EnableCSI", "--default-volumes-to-fs-backup",
		"--server-priority-class-name=server", "--node-agent-priority-class-name=agent",
		"--use-node-agent", "--use-node-agent-windows", "--kubeconfig="+kubeconfig, "--dry-run", "--output=json")
	theirs, err := program(ctx, t, "velero", append([]string{"install"}, same...)...).Output()
	require.NoError(t, err)
	ours, err := program(ctx, t, "lateen", append([]string{"install", "--lateen-image=example.test/lateen:v1"}, same...)...).Output()
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
		for _, key := range slices.Sorted(maps.Keys(merged(left, right))) {
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

func merged(left, right map[string]any) map[string]any {
	all := maps.Clone(left)
	maps.Copy(all, right)
	return all
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
