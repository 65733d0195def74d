package docs

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The table of packages has each package of the product, and no other.
func TestEveryPackageIsInTheArchitecture(t *testing.T) {
	_, table, found := strings.Cut(read(t, root+"/docs/architecture.md").text, "\n## Packages\n")
	require.True(t, found)
	var described []string
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\|").FindAllStringSubmatch(table, -1) {
		described = append(described, row[1])
	}
	require.ElementsMatch(t, folders(t), described)
}
