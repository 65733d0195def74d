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
	required := func(module, of string) string {
		text, err := os.ReadFile(filepath.Join(root, module, "go.mod"))
		require.NoError(t, err)
		found := regexp.MustCompile(regexp.QuoteMeta(of) + ` v([0-9.]+)`).FindSubmatch(text)
		require.NotNil(t, found, "%s does not require %s", module, of)
		return string(found[1])
	}
	kubernetes := required("test/cluster", "k8s.io/kubernetes")
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
	require.Equal(t, []string{required("test/velero117", velero), required("test/velero", velero)}, have)
	require.Equal(t, config.TriedVersions(), minors, "agents and lateen check warn of all others")
}
