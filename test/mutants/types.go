package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// source is a file of the program with the types of its expressions.
type source struct {
	path   string // relative to the root
	text   []byte
	syntax *ast.File
	files  *token.FileSet
	types  map[ast.Expr]types.TypeAndValue
	own    *types.Package
}

// load parses and checks the packages of the program below directories, without tests.
func load(ctx context.Context, root string, dirs []string) (all []source, err error) {
	exports, packages, err := list(ctx, root, dirs)
	if err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	imports := importer.ForCompiler(files, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for path, names := range packages {
		found := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}
		var parsed []*ast.File
		first := len(all)
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return nil, err
			}
			syntax, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
			if err != nil {
				return nil, fmt.Errorf("parse %s: %w", name, err)
			}
			relative, err := filepath.Rel(root, name)
			if err != nil {
				return nil, err
			}
			parsed = append(parsed, syntax)
			all = append(all, source{path: relative, text: text, syntax: syntax, files: files, types: found.Types})
		}
		checked, err := (&types.Config{Importer: imports}).Check(path, files, parsed, found)
		if err != nil {
			return nil, fmt.Errorf("check types: %w", err)
		}
		for i := first; i < len(all); i++ {
			all[i].own = checked
		}
	}
	return all, nil
}

// list returns the export data of all packages that the directories need, by import path, and the files of the program's own.
func list(ctx context.Context, root string, dirs []string) (exports map[string]string, packages map[string][]string, err error) {
	args := []string{"list", "-export", "-deps", "-f", `{{.ImportPath}}|{{.Export}}|{{.Dir}}|{{join .GoFiles " "}}`}
	for _, dir := range dirs {
		args = append(args, "./"+dir+"/...")
	}
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = root
	output, err := command.Output()
	if err != nil {
		exit := &exec.ExitError{}
		errors.As(err, &exit)
		return nil, nil, fmt.Errorf("list packages: %w\n%s", err, exit.Stderr)
	}
	exports, packages = map[string]string{}, map[string][]string{}
	const fields = 4
	for lines := bufio.NewScanner(bytes.NewReader(output)); lines.Scan(); {
		of := strings.SplitN(lines.Text(), "|", fields)
		exports[of[0]] = of[1]
		for _, dir := range dirs {
			if below := filepath.Join(root, dir); of[2] == below || strings.HasPrefix(of[2], below+string(filepath.Separator)) {
				for file := range strings.FieldsSeq(of[3]) {
					packages[of[0]] = append(packages[of[0]], filepath.Join(of[2], file))
				}
			}
		}
	}
	return exports, packages, nil
}

// name returns how the file writes a type, or "" if it does not import its package.
func (s source) name(of types.Type) string {
	missing := false
	name := types.TypeString(of, func(pkg *types.Package) string {
		if pkg == s.own {
			return ""
		}
		for _, spec := range s.syntax.Imports {
			if strings.Trim(spec.Path.Value, `"`) == pkg.Path() {
				if spec.Name != nil {
					return spec.Name.Name
				}
				return pkg.Name()
			}
		}
		missing = true
		return pkg.Name()
	})
	if missing {
		return ""
	}
	return name
}

// isNumber reports whether an expression is a constant number, and returns how the file writes its type.
func (s source) isNumber(expression ast.Expr) (string, bool) {
	found := s.types[expression]
	if found.Value == nil || found.Type == nil {
		return "", false
	}
	basic, ok := found.Type.Underlying().(*types.Basic)
	if !ok || basic.Info()&(types.IsInteger|types.IsFloat) == 0 || basic.Info()&types.IsUntyped != 0 {
		return "", false
	}
	name := s.name(found.Type)
	return name, name != ""
}

// alike reports whether two arguments can change places: they are no constants and have one type.
func (s source) alike(a, b ast.Expr) bool {
	left, right := s.types[a], s.types[b]
	return left.Value == nil && right.Value == nil && left.Type != nil && right.Type != nil && types.Identical(left.Type, right.Type) &&
		!left.IsNil() && !right.IsNil() && s.name(left.Type) != ""
}
