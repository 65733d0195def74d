package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one change of one line. The changed program has both versions; the environment selects one.
type mutant struct {
	number     int
	file       string // relative to the root
	line       int
	was, is    string // for people
	start, end int    // offsets of what is replaced
	text       string // replacement; "%d" is the number
}

// swapped are the operators that a mutant replaces.
var swapped = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND,
}

// generate returns all mutants of a file: swapped comparisons and logical operators, returned truth values that are
// inverted, and calls and assignments that are left out.
func generate(file string, source []byte) ([]mutant, error) {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, source, parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", file, err)
	}
	var all []mutant
	text := func(from, to token.Pos) string {
		return string(source[files.Position(from).Offset:files.Position(to).Offset])
	}
	add := func(node ast.Node, is, replacement string) {
		was, _, _ := strings.Cut(text(node.Pos(), node.End()), "\n")
		all = append(all, mutant{
			file: file, line: files.Position(node.Pos()).Line, was: was, is: is, text: replacement,
			start: files.Position(node.Pos()).Offset, end: files.Position(node.End()).Offset,
		})
	}
	visit := func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.GenDecl:
			return node.Tok != token.CONST
		case *ast.BinaryExpr:
			if to, found := swapped[node.Op]; found {
				was, is := text(node.Pos(), node.End()), text(node.X.Pos(), node.X.End())+" "+to.String()+" "+text(node.Y.Pos(), node.Y.End())
				add(node, is, "func() bool { if mutants.Is(%d) { return "+is+" }; return "+was+" }()")
			}
		case *ast.ReturnStmt:
			for _, value := range node.Results {
				if name, ok := value.(*ast.Ident); ok && (name.Name == "true" || name.Name == "false") {
					add(name, "!"+name.Name, "(mutants.Is(%d) != "+name.Name+")")
				}
			}
		case *ast.BlockStmt:
			for _, statement := range node.List {
				if omissible(statement) {
					add(statement, "nothing", "if !mutants.Is(%d) {\n"+text(statement.Pos(), statement.End())+"\n}")
				}
			}
		}
		return true
	}
	for _, declaration := range parsed.Decls {
		if function, ok := declaration.(*ast.FuncDecl); ok && function.Body != nil {
			ast.Inspect(function.Body, visit)
		}
	}
	return all, nil
}

// omissible reports whether the program compiles without a statement: a call other than panic, or an assignment.
func omissible(statement ast.Stmt) bool {
	switch one := statement.(type) {
	case *ast.ExprStmt:
		call, ok := one.X.(*ast.CallExpr)
		if !ok {
			return false
		}
		name, ok := call.Fun.(*ast.Ident)
		return !ok || name.Name != "panic"
	case *ast.AssignStmt:
		return one.Tok != token.DEFINE
	case *ast.IncDecStmt:
		return true
	}
	return false
}

// separate returns those of the mutants, in their order, that do not overlap an earlier one.
func separate(all []mutant) (apart []mutant) {
	for _, one := range all {
		if !slices.ContainsFunc(apart, func(other mutant) bool {
			return other.file == one.file && one.start < other.end && other.start < one.end
		}) {
			apart = append(apart, one)
		}
	}
	return apart
}

// instrument returns a file with its mutants, and with the import that they need.
func instrument(source []byte, module string, mutants []mutant) []byte {
	slices.SortFunc(mutants, func(a, b mutant) int { return b.start - a.start })
	for _, one := range mutants {
		replacement := strings.Replace(one.text, "%d", fmt.Sprint(one.number), 1)
		source = slices.Concat(source[:one.start], []byte(replacement), source[one.end:])
	}
	return bytes.Replace(source, []byte("\nimport ("), []byte("\nimport (\n\t"+fmt.Sprintf("%q", module+"/mutants")+"\n"), 1)
}

// isProduct reports whether a file is part of the program, and not a test of it.
func isProduct(file string) bool {
	return filepath.Ext(file) == ".go" && !strings.HasSuffix(file, "_test.go")
}

// selector is the package that the changed program imports. It also records which mutants a run reaches.
const selector = `// Package mutants selects a mutant.
package mutants

import (
	"os"
	"strconv"
	"sync"
)

var (
	active, _ = strconv.Atoi(os.Getenv("MUTANT"))
	record    = os.Getenv("MUTANTS_REACHED")
	lock      sync.Mutex
	reached   = map[int]bool{}
)

// Is reports whether a mutant is active.
func Is(number int) bool {
	if record != "" {
		lock.Lock()
		defer lock.Unlock()
		if !reached[number] {
			reached[number] = true
			file, err := os.OpenFile(record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err == nil {
				_, err = file.WriteString(strconv.Itoa(number) + "\n")
			}
			if err == nil {
				err = file.Close()
			}
			if err != nil {
				panic(err)
			}
		}
	}
	return number == active
}
`
