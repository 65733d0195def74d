package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"iter"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/reconcile/transfer"
)

// TestPhasesAreComparedByTheirMethodsOnly holds the product to switches and to the methods of transfer.Phase. The linter
// reports a switch without a new phase, and TestEveryPhaseIsClassified in reconcile/transfer a method without it. Nothing
// reports a comparison or a list.
func TestPhasesAreComparedByTheirMethodsOnly(t *testing.T) {
	var found []string
	methods := 0
	for file, positions := range productFiles(t) {
		isPhase := func(of ast.Expr) bool {
			name, local := of.(*ast.Ident)
			if selector, is := of.(*ast.SelectorExpr); is {
				if from, is := selector.X.(*ast.Ident); is && from.Name == "transfer" {
					name, local = selector.Sel, true
				}
			} else {
				local = local && file.Name.Name == "transfer"
			}
			return local && slices.Contains(transfer.Phases(), transfer.Phase(name.Name))
		}
		for _, declaration := range file.Decls {
			function, is := declaration.(*ast.FuncDecl)
			if !is {
				continue
			}
			if file.Name.Name == "transfer" && (isMethodOf(function, "Phase") || function.Name.Name == "Phases") {
				methods++
				continue
			}
			for node := range ast.Preorder(function) {
				switch node := node.(type) {
				case *ast.BinaryExpr:
					if (node.Op == token.EQL || node.Op == token.NEQ) && (isPhase(node.X) || isPhase(node.Y)) {
						found = append(found, positions.Position(node.Pos()).String())
					}
				case *ast.CompositeLit:
					if slices.ContainsFunc(node.Elts, isPhase) {
						found = append(found, positions.Position(node.Pos()).String())
					}
				}
			}
		}
	}
	require.Empty(t, found, "compare by a method of transfer.Phase, or list all phases in a switch")
	require.Greater(t, methods, len(transfer.Phases()), "methods of Phase")
}

func isMethodOf(function *ast.FuncDecl, receiver string) bool {
	if function.Recv == nil {
		return false
	}
	name, is := function.Recv.List[0].Type.(*ast.Ident)
	return is && name.Name == receiver
}

// productFiles parses the files of the product, without tests.
func productFiles(t *testing.T) iter.Seq2[*ast.File, *token.FileSet] {
	t.Helper()
	return func(yield func(*ast.File, *token.FileSet) bool) {
		files := token.NewFileSet()
		require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && slices.Contains([]string{"test", "bin", ".git"}, entry.Name()):
				return fs.SkipDir
			case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			if !yield(file, files) {
				return fs.SkipAll
			}
			return nil
		}))
	}
}
