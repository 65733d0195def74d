package check_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/lateen-project/lateen/cmd/lateen/check"
	"github.com/lateen-project/lateen/exposer/priority"
)

var update = flag.Bool("update", false, "write the golden reports")

const corpus = "../config/testdata/corpus"

// reported returns the report of a file and its number of Problems.
func reported(t *testing.T, path string, cluster *check.Cluster, node *corev1.Node) (string, int) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	kind := check.Kind("")
	if strings.HasPrefix(filepath.Base(path), "repository-") { // the corpus test distinguishes the kinds by this prefix
		kind = check.BackupRepository
	}
	documents, err := check.ReadFile(filepath.Base(path), text, kind)
	require.NoError(t, err)
	var reported bytes.Buffer
	output := check.EvaluateAll(documents, cluster, node)
	require.NoError(t, output.Write(&reported))
	return reported.String(), output.Problems()
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func node(name string, labels map[string]string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

// full returns a cluster with every object that good-every-field.yaml names, after a change.
func full(change func(*check.Cluster)) *check.Cluster {
	class := func(name string) *storagev1.StorageClass { return &storagev1.StorageClass{ObjectMeta: named(name)} }
	cluster := &check.Cluster{
		Nodes: []corev1.Node{
			node("node-1", map[string]string{"size": "big", "disk": "fast"}),
			node("node-2", map[string]string{"zone": "a"}),
			node("node-3", map[string]string{"zone": "b", "size": "big", "gpu": "yes"}),
			node("node-4", nil),
		},
		StorageClasses: map[string]*storagev1.StorageClass{
			"gold": class("gold"), "silver": class("silver"), "bronze": class("bronze"), "local": class("local"),
		},
		PriorityClasses: map[string]*schedulingv1.PriorityClass{"velero-low": {ObjectMeta: named("velero-low")}},
		TryClass:        func(string) priority.Reason { return "" },
		MoverImage:      "velero/velero:v1.18.3",
	}
	change(cluster)
	return cluster
}

// bare returns a cluster with none of these objects.
func bare() *check.Cluster {
	return &check.Cluster{
		Nodes:           []corev1.Node{node("node-1", map[string]string{"gpu": "yes"})},
		StorageClasses:  map[string]*storagev1.StorageClass{},
		PriorityClasses: map[string]*schedulingv1.PriorityClass{},
	}
}

func TestReports(t *testing.T) {
	big := node("node-3", map[string]string{"zone": "b", "size": "big"})
	unchanged := func(*check.Cluster) {}
	limited := func(c *check.Cluster) { c.TryClass = func(string) priority.Reason { return priority.QuotaScope } }
	preempting := func(c *check.Cluster) { c.PriorityClasses["velero-low"].Value = 10 }
	old := func(c *check.Cluster) { c.MoverImage = "velero/velero:v1.17.2" }
	for name, test := range map[string]struct {
		file    string
		cluster *check.Cluster
		node    *corev1.Node
		count   int
	}{
		"a file alone":                           {file: "good-every-field.yaml"},
		"a cluster that has all that is named":   {file: "good-every-field.yaml", cluster: full(unchanged)},
		"a priority class that quota limits":     {file: "good-every-field.yaml", cluster: full(limited), count: 1},
		"a priority class that preempts":         {file: "good-every-field.yaml", cluster: full(preempting), count: 1},
		"a node":                                 {file: "good-every-field.yaml", cluster: full(unchanged), node: &big},
		"a cluster that has nothing":             {file: "good-every-field.yaml", cluster: bare(), count: 12},
		"a cluster that could not be read":       {file: "good-every-field.yaml", cluster: &check.Cluster{}},
		"movers that know no cache":              {file: "good-every-field.yaml", cluster: full(old), count: 1},
		"types that are wrong":                   {file: "type-wrong-everywhere.json", count: 10},
		"two keys":                               {file: "map-with-two-keys.yaml", count: 1},
		"an unknown field":                       {file: "field-unknown-at-top.json", count: 2},
		"no priority class and nothing to miss":  {file: "good-empty-object.json", cluster: bare()},
		"a backup repository ConfigMap":          {file: "repository-good.yaml", cluster: bare()},
		"a ConfigMap of maintenance jobs":        {file: "../../../check/testdata/jobs.yaml", cluster: bare(), count: 6},
		"a backup repository ConfigMap too many": {file: "repository-field-twice.yaml", count: 2},
	} {
		t.Run(name, func(t *testing.T) {
			reported, count := reported(t, filepath.Join(corpus, test.file), test.cluster, test.node)
			golden := filepath.Join("testdata", strings.ReplaceAll(name, " ", "-")+".txt")
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(golden, []byte(reported), 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err, "go test ./cmd/lateen/check -update writes it")
			require.Equal(t, string(want), reported)
			require.Equal(t, test.count, count)
		})
	}
}

const (
	agentMap      = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: agents, namespace: velero}\ndata:\n  config: |\n    {\"podLabels\": 1}\n"
	repositoryMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: repositories}\ndata:\n  kopia: |\n    {}\n  other: x\n"
)

func TestReadFile(t *testing.T) {
	agents := check.Document{
		Kind: check.NodeAgent, Title: "ConfigMap velero/agents in f", Data: map[string]string{"config": "{\"podLabels\": 1}\n"}, First: 6,
	}
	repositories := check.Document{
		Kind: check.BackupRepository, Title: "ConfigMap repositories in f", Data: map[string]string{"kopia": "{}\n", "other": "x"}, First: 6,
	}
	moved := func(document check.Document, lines int) check.Document { document.First += lines; return document }
	quoted := agents
	quoted.Data, quoted.First = map[string]string{"config": `{"podLabels": 1}`}, 0
	for name, test := range map[string]struct {
		text string
		kind check.Kind
		want []check.Document
	}{
		"bare JSON is for the node-agent": {text: "{}", want: []check.Document{{Kind: check.NodeAgent, Title: "f", Data: map[string]string{"f": "{}"}}}},
		"bare JSON with the kind of repositories": {text: "{}", kind: check.BackupRepository, want: []check.Document{
			{Kind: check.BackupRepository, Title: "f", Data: map[string]string{"kopia": "{}"}},
		}},
		"nothing at all":                        {text: "", want: []check.Document{{Kind: check.NodeAgent, Title: "f", Data: map[string]string{"f": ""}}}},
		"text that is no YAML":                  {text: "{\n\tx", want: []check.Document{{Kind: check.NodeAgent, Title: "f", Data: map[string]string{"f": "{\n\tx"}}}},
		"a manifest":                            {text: agentMap, want: []check.Document{agents}},
		"a manifest as JSON":                    {text: `{"kind": "ConfigMap", "metadata": {"name": "agents", "namespace": "velero"}, "data": {"config": "{\"podLabels\": 1}"}}`, want: []check.Document{quoted}},
		"a manifest with a key of repositories": {text: repositoryMap, want: []check.Document{repositories}},
		"two manifests, and one of something else": {
			text: agentMap + "---\nkind: Secret\nmetadata: {name: s}\n---\n" + repositoryMap,
			want: []check.Document{agents, moved(repositories, 10)},
		},
		"a list": {
			text: "kind: List\nitems:\n- kind: Secret\n- {kind: ConfigMap, metadata: {name: agents, namespace: velero}, data: {config: '{\"podLabels\": 1}'}}\n",
			want: []check.Document{quoted},
		},
		"a list of a list": {text: "kind: List\nitems: [{kind: ConfigMapList, items: [{kind: ConfigMap, metadata: {name: e}}]}]\n", want: []check.Document{
			{Kind: check.NodeAgent, Title: "ConfigMap e in f", Data: map[string]string{}},
		}},
		"an alias": {text: "kind: ConfigMap\nmetadata: {name: &a e}\ndata: {config: *a}\n", want: []check.Document{
			{Kind: check.NodeAgent, Title: "ConfigMap e in f", Data: map[string]string{"config": "e"}},
		}},
	} {
		got, err := check.ReadFile("f", []byte(test.text), test.kind)
		require.NoError(t, err, name)
		require.Equal(t, test.want, got, name)
	}
}

func TestReadFileOfUnreadableFiles(t *testing.T) {
	for name, test := range map[string]struct{ text, message string }{
		"a manifest that is no YAML":       {"kind: ConfigMap\ndata:\n\tx: y\n", "read f: yaml: line 3"},
		"no ConfigMap":                     {"kind: Secret\nmetadata: {name: s}\n---\nkind: Role\n", "found no ConfigMap, only Secret s, Role"},
		"configuration that is YAML":       {"kind: ConfigMap\nmetadata: {name: m}\ndata:\n  config:\n    podLabels: {}\n", "line 5: data.config of ConfigMap m is not a string; write the configuration as an indented block after |"},
		"a number":                         {"kind: ConfigMap\nmetadata: {name: m}\ndata: {config: 5}\n", "line 3: data.config of ConfigMap m is not a string"},
		"a key that is given twice":        {"kind: ConfigMap\ndata:\n  a: x\n  a: y\n", `line 4: mapping key "a" already defined at line 3`},
		"a list that holds itself":         {"&a\nkind: List\nitems: [*a]\n", "found no ConfigMap, only "},
		"a list of a list that is no list": {"kind: List\nitems: &a {b: *a}\n", "cannot unmarshal !!map into []yaml.Node"},
		"a second document that is wrong":  {agentMap + "---\nkind: [\n", "read f: yaml"},
	} {
		_, err := check.ReadFile("f", []byte(test.text), "")
		require.ErrorContains(t, err, test.message, name)
	}
}
