package deploy_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// Helm reads no file outside of the chart. So it has copies of what it shares with kustomize and with deploy/monitoring.
func TestTheFilesOfTheChartAreCopies(t *testing.T) {
	sources := map[string]string{
		"rbac.yaml": "base/rbac.yaml", "flowcontrol.yaml": "base/flowcontrol.yaml", "networkpolicy.yaml": "base/networkpolicy.yaml",
		"movers.yaml": "components/movers/rbac.yaml", "policies.yaml": "components/pod-policy/policies.yaml",
		"podmonitor.yaml": "monitoring/podmonitor.yaml", "prometheusrule.yaml": "monitoring/prometheusrule.yaml", "lateen.json": "monitoring/lateen.json",
	}
	for name, source := range sources {
		want, err := os.ReadFile(source)
		require.NoError(t, err)
		if *update {
			require.NoError(t, os.WriteFile("chart/files/"+name, want, 0o644))
		}
		have, err := os.ReadFile("chart/files/" + name)
		require.NoError(t, err)
		require.Equal(t, string(want), string(have), "deploy/chart/files/%s is not a copy of deploy/%s: run make manifests", name, source)
	}
	files, err := os.ReadDir("chart/files")
	require.NoError(t, err)
	require.Len(t, files, len(sources))
}
