package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of packages has each package of the product, and no other.
func TestEveryPackageIsInTheArchitecture(t *testing.T) {
	var packages, described []string
	for file, positions := range productFiles(t) {
		name, err := filepath.Rel(root, filepath.Dir(positions.Position(file.Pos()).Filename))
		require.NoError(t, err)
		if !slices.Contains(packages, name) {
			packages = append(packages, name)
		}
	}
	_, table, found := strings.Cut(read(t, root+"/docs/architecture.md").text, "\n## Packages\n")
	require.True(t, found)
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\|").FindAllStringSubmatch(table, -1) {
		described = append(described, row[1])
	}
	require.ElementsMatch(t, packages, described)
}
