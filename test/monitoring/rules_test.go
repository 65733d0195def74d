// Package monitoring tries the alerts of deploy/monitoring with Prometheus itself.
package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"

	"github.com/lateen-project/lateen/test/cluster"
)

// manifests are what the tests are about, and the data with which promtool tries it.
const manifests = "../../deploy/monitoring"

// rules are the groups of the PrometheusRule as Prometheus itself reads them.
type rules struct {
	Groups []struct {
		Name  string           `json:"name"`
		Rules []map[string]any `json:"rules"`
	} `json:"groups"`
}

func readRules(t *testing.T) rules {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(manifests, "prometheusrule.yaml"))
	require.NoError(t, err)
	var resource struct {
		Spec rules `json:"spec"`
	}
	require.NoError(t, yaml.Unmarshal(text, &resource))
	require.NotEmpty(t, resource.Spec.Groups)
	return resource.Spec
}

// write writes the rules into a directory and returns the file.
func (r rules) write(t *testing.T, dir string) string {
	t.Helper()
	text, err := yaml.Marshal(r)
	require.NoError(t, err)
	file := filepath.Join(dir, "rules.yaml")
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return file
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	binary, err := cluster.FindBinary("promtool")
	require.NoError(t, err)
	reported, err := exec.CommandContext(soon(t), binary, args...).CombinedOutput()
	require.NoError(t, err, string(reported))
}

func TestPrometheusTakesTheRules(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", readRules(t).write(t, t.TempDir()))
}

// The data are of no agent at all, of agents that are well, and of each fault.
func TestAlertsFireForTheirFaultsAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	readRules(t).write(t, dir)
	series, err := filepath.Glob(filepath.Join(manifests, "testdata", "*.yaml"))
	require.NoError(t, err)
	require.NotEmpty(t, series)
	for _, file := range series {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			own := filepath.Join(dir, filepath.Base(file)) // the rules that it names are beside it
			require.NoError(t, os.WriteFile(own, text, 0o600))
			promtool(t, "test", "rules", own)
		})
	}
}

func TestKubectlBuildsTheKustomization(t *testing.T) {
	t.Parallel()
	binary, err := cluster.FindBinary("kubectl")
	require.NoError(t, err)
	built, err := exec.CommandContext(soon(t), binary, "kustomize", manifests).Output()
	require.NoError(t, err)
	kinds := map[string]int{}
	for part := range strings.SplitSeq(string(built), "\n---\n") {
		var object struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Namespace string
				Labels    map[string]string
			} `json:"metadata"`
			Data map[string]string `json:"data"`
		}
		require.NoError(t, yaml.Unmarshal([]byte(part), &object))
		require.Equal(t, "velero", object.Metadata.Namespace)
		kinds[object.Kind]++
		if object.Kind == "ConfigMap" {
			require.Equal(t, "1", object.Metadata.Labels["grafana_dashboard"], "Grafana's sidecar finds it")
			dashboard, err := os.ReadFile(filepath.Join(manifests, "lateen.json"))
			require.NoError(t, err)
			require.Equal(t, map[string]string{"lateen.json": string(dashboard)}, object.Data)
		}
	}
	require.Equal(t, map[string]int{"ConfigMap": 1, "PodMonitor": 1, "PrometheusRule": 1}, kinds)
}
