package docs

import (
	"go/ast"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// folders are those of the product that have Go files.
func folders(t *testing.T) []string {
	t.Helper()
	found := map[string]bool{}
	for _, top := range []string{"cmd", "deploy", "exposer", "informers", "metrics", "reconcile"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, top), func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				folder, relErr := filepath.Rel(root, filepath.Dir(path))
				found[folder] = true
				return relErr
			}
			return err
		}))
	}
	var all []string
	for folder := range found {
		all = append(all, folder)
	}
	return sorted(all)
}

// reasons are the constants named Event… of the product, by name, and the calls of recorders that name none.
func reasons(t *testing.T) (named map[string]string, unnamed []string) {
	t.Helper()
	named = map[string]string{}
	for _, folder := range folders(t) {
		for _, file := range sources(t, folder) {
			for node := range ast.Preorder(file) {
				switch node := node.(type) {
				case *ast.GenDecl:
					if node.Tok == token.CONST {
						addReasons(named, node)
					}
				case *ast.CallExpr:
					method, is := node.Fun.(*ast.SelectorExpr)
					if !is || len(node.Args) < 4 || !strings.HasPrefix(strings.ToLower(method.Sel.Name), "event") {
						continue
					}
					reason, is := node.Args[2].(*ast.Ident)
					if !is || !strings.HasPrefix(reason.Name, "Event") && reason.Name != "reason" {
						unnamed = append(unnamed, folder)
					}
				}
			}
		}
	}
	return named, unnamed
}

func addReasons(into map[string]string, constants *ast.GenDecl) {
	for _, spec := range constants.Specs {
		each, is := spec.(*ast.ValueSpec)
		if !is || !strings.HasPrefix(each.Names[0].Name, "Event") || len(each.Values) != 1 {
			continue
		}
		if value, is := text(each.Values[0]); is {
			into[each.Names[0].Name] = value
		}
	}
}

func TestEveryReasonOfAnEventIsDescribed(t *testing.T) {
	named, unnamed := reasons(t)
	require.Empty(t, unnamed, "an Event's reason is a constant named Event…, so that the documentation can be held against it")
	require.NotEmpty(t, named)
	var known, described []string
	for _, reason := range named {
		known = append(known, reason)
	}
	reason := regexp.MustCompile(`^[A-Z][A-Za-z]+$`)
	for _, row := range rows(page(t, "metrics").section(t, "Events")) {
		for _, code := range codes(row[1]) {
			require.Regexp(t, reason, code, "docs/metrics.md: the second column of Events has their reasons")
			described = append(described, code)
		}
	}
	require.Equal(t, sorted(known), sorted(described))
}
