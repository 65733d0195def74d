package docs

import (
	"io/fs"
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
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{"test", "bin", ".git"}, entry.Name()):
			return fs.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		name, err := filepath.Rel(root, filepath.Dir(path))
		if err == nil && !slices.Contains(packages, name) {
			packages = append(packages, name)
		}
		return err
	})
	require.NoError(t, err)
	_, table, found := strings.Cut(read(t, root+"/docs/architecture.md").text, "\n## Packages\n")
	require.True(t, found)
	for _, row := range regexp.MustCompile("(?m)^\\| `([a-z/]+)` \\|").FindAllStringSubmatch(table, -1) {
		described = append(described, row[1])
	}
	require.ElementsMatch(t, packages, described)
}
