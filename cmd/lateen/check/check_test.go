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

const corpus = "../configmap/testdata/corpus"

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

// TestReportsOfTheCorpus requires that a report has every Problem of the parser.
func TestReportsOfTheCorpus(t *testing.T) {
	expected, err := filepath.Glob(filepath.Join(corpus, "*.problems"))
	require.NoError(t, err)
	require.NotEmpty(t, expected)
	for _, file := range expected {
		want, err := os.ReadFile(file)
		require.NoError(t, err)
		reported, count := reported(t, strings.TrimSuffix(file, ".problems"), nil, nil)
		require.Equal(t, strings.Count(string(want), "\n"), count, reported)
		for line := range strings.Lines(string(want)) {
			_, problem, _ := strings.Cut(strings.TrimSpace(line), " ")
			_, message, _ := strings.Cut(problem, ": ")
			require.Contains(t, reported, message, file)
		}
	}
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }

func node(name string, labels map[string]string) corev1.Node {
	return corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}
}

// full returns a cluster with every object that good-every-field.yaml names.
func full() *check.Cluster {
	class := func(name string) *storagev1.StorageClass { return &storagev1.StorageClass{ObjectMeta: named(name)} }
	return &check.Cluster{
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
}

// limited returns the full cluster, whose API server limits the class by quota.
func limited() *check.Cluster {
	cluster := full()
	cluster.TryClass = func(string) priority.Reason { return priority.QuotaScope }
	return cluster
}

// old is full with movers of Velero 1.17.
func old() *check.Cluster {
	cluster := full()
	cluster.MoverImage = "velero/velero:v1.17.2"
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
	for name, test := range map[string]struct {
		file    string
		cluster *check.Cluster
		node    *corev1.Node
		count   int
	}{
		"a file alone":                           {file: "good-every-field.yaml"},
		"a cluster that has all that is named":   {file: "good-every-field.yaml", cluster: full()},
		"a priority class that quota limits":     {file: "good-every-field.yaml", cluster: limited(), count: 1},
		"a node":                                 {file: "good-every-field.yaml", cluster: full(), node: &big},
		"a cluster that has nothing":             {file: "good-every-field.yaml", cluster: bare(), count: 10},
		"a cluster that could not be read":       {file: "good-every-field.yaml", cluster: &check.Cluster{}},
		"movers that know no cache":              {file: "good-every-field.yaml", cluster: old(), count: 1},
		"types that are wrong":                   {file: "type-wrong-everywhere.json", count: 10},
		"two keys":                               {file: "map-with-two-keys.yaml", count: 1},
		"an unknown field":                       {file: "field-unknown-at-top.json", count: 2},
		"no priority class and nothing to miss":  {file: "good-empty-object.json", cluster: bare()},
		"a backup repository ConfigMap":          {file: "repository-good.yaml", cluster: bare()},
		"a ConfigMap of maintenance jobs":        {file: "../../../check/testdata/jobs.yaml", cluster: bare(), count: 4},
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
