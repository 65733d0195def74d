package api_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A label, annotation or finalizer of Lateen or Velero; a group with its version is none.
var name = regexp.MustCompile(`^(lateen\.dev|velero\.io)/[a-z-]{3,}$`)

func TestLabelsAnnotationsAndFinalizersHaveOneHome(t *testing.T) {
	var elsewhere []string
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (path == "../../test" || path == "../../bin" || strings.HasPrefix(entry.Name(), ".") && path != "../.."):
			return filepath.SkipDir
		case filepath.Ext(path) != ".go" || filepath.Dir(path) == "../../exposer/api":
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if literal, ok := node.(*ast.BasicLit); ok && literal.Kind == token.STRING {
				if text, err := strconv.Unquote(literal.Value); err == nil && name.MatchString(text) {
					elsewhere = append(elsewhere, path+": "+text)
				}
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
	require.Empty(t, elsewhere, "use the constant of package api or of Velero")
}
