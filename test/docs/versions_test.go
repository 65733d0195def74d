package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/lateen-project/lateen/cmd/lateen/config"
)

// The table of versions has exactly what the tests run: the Velero of each wrapper, and the Kubernetes of the control plane.
func TestTheTableOfVersionsHasWhatTheTestsRun(t *testing.T) {
	kubernetes := required(t, "test/cluster/go.mod", "k8s.io/kubernetes")
	row := regexp.MustCompile(`^Velero ([0-9.]+)$`)
	var have, minors []string
	for _, cells := range rows(page(t, "compatibility").prose) {
		if found := row.FindStringSubmatch(cells[0]); found != nil {
			require.Equal(t, kubernetes, cells[1], "Velero %s", found[1])
			have = append(have, found[1])
			parsed := version.MustParseGeneric(found[1])
			minors = append(minors, version.MajorMinor(parsed.Major(), parsed.Minor()).String())
		}
	}
	const velero = "github.com/vmware-tanzu/velero"
	require.Equal(t, []string{required(t, "test/velero117/go.mod", velero), required(t, "test/velero/go.mod", velero)}, have)
	require.Equal(t, config.TestedVersions(), minors, "agents and lateen check warn of all others")
}

// The results of conformance have the control plane of all tests and those of make compatibility. Lateen passed all cases on each.
func TestTheTableOfKubernetesHasWhatTheTestsRun(t *testing.T) {
	others, err := filepath.Glob(filepath.Join(root, "test/cluster/kubernetes-*.mod"))
	require.NoError(t, err)
	want := []string{required(t, "test/cluster/go.mod", "k8s.io/kubernetes")}
	for _, path := range others {
		want = append(want, required(t, "test/cluster/"+filepath.Base(path), "k8s.io/kubernetes"))
	}
	results, err := os.ReadFile(filepath.Join(root, "test/conformance/results/README.md"))
	require.NoError(t, err)
	var have, minors []string
	for _, row := range regexp.MustCompile(`(?m)^\| ([0-9.]+) \| (\d+) of (\d+) \|`).FindAllStringSubmatch(string(results), -1) {
		require.Equal(t, row[3], row[2], "Kubernetes %s", row[1])
		have = append(have, row[1])
		parsed := version.MustParseGeneric(row[1])
		minors = append(minors, version.MajorMinor(parsed.Major(), parsed.Minor()).String())
	}
	require.ElementsMatch(t, want, have, "run: make compatibility")
	require.Equal(t, config.TestedKubernetes(), minors, "lateen check warns of all others")
}

// required is the version of a module that a go.mod of this repository requires.
func required(t *testing.T, file, module string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, file))
	require.NoError(t, err)
	found := regexp.MustCompile(regexp.QuoteMeta(module) + ` v([0-9.]+)`).FindSubmatch(text)
	require.NotNil(t, found, "%s does not require %s", file, module)
	return string(found[1])
}
