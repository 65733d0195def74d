package docs

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// listed is a package as `go list -json` prints it.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	DepOnly                 bool
}

// uses are the references between files of a package: from one file to another, and the names that it takes.
type uses map[[2]string][]string

// The files of a package have an order in which all references but one run downwards. So a file can be read with those
// below it alone. A method belongs to the file that declares it; fields, receivers and methods of interfaces do not count.
func TestFilesReferToEachOtherInOneDirection(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-trimpath", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,DepOnly", "./...")
	list.Dir, list.Stderr = root, os.Stderr
	output, err := list.Output()
	require.NoError(t, err)
	exports := map[string]string{}
	var product []listed
	for decoder := json.NewDecoder(strings.NewReader(string(output))); ; {
		var one listed
		if err := decoder.Decode(&one); errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		exports[one.ImportPath] = one.Export
		if !one.DepOnly {
			product = append(product, one)
		}
	}
	require.NotEmpty(t, product)
	for _, one := range product {
		all := referencesOf(t, one, exports)
		circles := core(all)
		for edge := range circles {
			without := maps.Clone(circles)
			delete(without, edge)
			if len(core(without)) == 0 {
				circles = nil
				break
			}
		}
		require.Empty(t, circles, "%s: move what closes these circles to the file of its subject", one.ImportPath)
	}
}

// referencesOf type-checks a package.
func referencesOf(t *testing.T, of listed, exports map[string]string) uses {
	t.Helper()
	positions := token.NewFileSet()
	var files []*ast.File
	receivers := map[*ast.Ident]bool{}
	for _, name := range of.GoFiles {
		file, err := parser.ParseFile(positions, filepath.Join(of.Dir, name), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		files = append(files, file)
		for _, declaration := range file.Decls {
			if method, is := declaration.(*ast.FuncDecl); is && method.Recv != nil {
				for node := range ast.Preorder(method.Recv) {
					if name, is := node.(*ast.Ident); is {
						receivers[name] = true
					}
				}
			}
		}
	}
	found := &types.Info{Uses: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: importer.ForCompiler(positions, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })}
	checked, err := config.Check(of.ImportPath, positions, files, found)
	require.NoError(t, err)
	all := uses{}
	for name, object := range found.Uses {
		if object.Pkg() != checked || receivers[name] || !belongsToAFile(object, checked) {
			continue
		}
		edge := [2]string{filepath.Base(positions.Position(name.Pos()).Filename), filepath.Base(positions.Position(object.Pos()).Filename)}
		if edge[0] != edge[1] && !slices.Contains(all[edge], name.Name) {
			all[edge] = append(all[edge], name.Name)
		}
	}
	return all
}

// belongsToAFile reports whether an object is declared at the top of a file, or is a method there.
func belongsToAFile(object types.Object, of *types.Package) bool {
	if function, is := object.(*types.Func); is && function.Signature().Recv() != nil {
		return !types.IsInterface(function.Signature().Recv().Type())
	}
	return object.Parent() == of.Scope()
}

// core is what remains of all references without those of files that use no other, or that no other uses: the circles, and
// what connects them.
func core(all uses) uses {
	for {
		using, used := map[string]bool{}, map[string]bool{}
		for edge := range all {
			using[edge[0]], used[edge[1]] = true, true
		}
		rest := maps.Clone(all)
		maps.DeleteFunc(rest, func(edge [2]string, _ []string) bool { return !used[edge[0]] || !using[edge[1]] })
		if len(rest) == len(all) {
			return rest
		}
		all = rest
	}
}
