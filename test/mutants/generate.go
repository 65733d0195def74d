package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mutant is one change of one line.
type mutant struct {
	file       string // relative to the root
	line       int
	was, is    string
	start, end int // offsets of what is replaced
}

// String returns where a mutant is and what it changes.
func (m mutant) String() string {
	was, _, _ := strings.Cut(m.was, "\n")
	return fmt.Sprintf("%s:%d: %s → %s", m.file, m.line, was, m.is)
}

// apply returns a file with the mutant.
func (m mutant) apply(text []byte) []byte {
	return slices.Concat(text[:m.start], []byte(m.is), text[m.end:])
}

// swapped are the operators that a mutant replaces.
var swapped = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND,
}

// generateAll returns all mutants of the packages below directories.
func generateAll(root string, dirs []string) (all []mutant, err error) {
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			file, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			mutants, err := generate(file, text)
			all = append(all, mutants...)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("generate mutants of %s: %w", dir, err)
		}
	}
	return all, nil
}

// generator collects the mutants of a file.
type generator struct {
	file  string
	text  []byte
	files *token.FileSet
	all   []mutant
}

// generate returns all mutants of a file: swapped comparisons, logical operators and arguments, dropped alternatives, changed
// numbers, returned truth values that are inverted, and calls and assignments that are left out. Some of them do not compile.
func generate(file string, text []byte) ([]mutant, error) {
	g := &generator{file: file, text: text, files: token.NewFileSet()}
	syntax, err := parser.ParseFile(g.files, file, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	for _, declaration := range syntax.Decls {
		if function, ok := declaration.(*ast.FuncDecl); ok && function.Body != nil {
			ast.Inspect(function.Body, g.visit)
		}
	}
	return g.all, nil
}

func (g *generator) of(node ast.Node) string {
	return string(g.text[g.files.Position(node.Pos()).Offset:g.files.Position(node.End()).Offset])
}

// add adds a mutant that replaces what is from one node to another.
func (g *generator) add(from, to ast.Node, is string) {
	start, end := g.files.Position(from.Pos()), g.files.Position(to.End())
	g.all = append(g.all, mutant{
		file: g.file, line: start.Line, was: string(g.text[start.Offset:end.Offset]), is: is, start: start.Offset, end: end.Offset,
	})
}

// visit adds the mutants of a node, and reports whether those within it are wanted too.
func (g *generator) visit(node ast.Node) bool {
	switch node := node.(type) {
	case *ast.BasicLit:
		if node.Kind == token.INT || node.Kind == token.FLOAT {
			g.add(node, node, "(2*"+node.Value+" + 1)")
		}
	case *ast.BinaryExpr:
		g.binary(node)
	case *ast.CallExpr:
		if isLog(node) {
			return false
		}
		for i := 1; i < len(node.Args); i++ {
			if a, b := node.Args[i-1], node.Args[i]; isPlain(a) && isPlain(b) && g.of(a) != g.of(b) {
				g.add(a, b, g.of(b)+", "+g.of(a))
			}
		}
	case *ast.IfStmt: // a condition of log lines alone
		return node.Else != nil || slices.ContainsFunc(node.Body.List, func(statement ast.Stmt) bool { return !isLogLine(statement) })
	case *ast.SwitchStmt:
		for _, statement := range node.Body.List {
			if clause, ok := statement.(*ast.CaseClause); ok && node.Tag == nil && len(clause.List) == 1 {
				g.add(clause.List[0], clause.List[0], "false && ("+g.of(clause.List[0])+")")
			}
		}
	case *ast.CaseClause: // that does nothing, as the values of the switch that it does not list
		return len(node.Body) > 0
	case *ast.ReturnStmt:
		for _, value := range node.Results {
			if name, ok := value.(*ast.Ident); ok && (name.Name == "true" || name.Name == "false") {
				g.add(name, name, "!"+name.Name)
			}
		}
	case *ast.BlockStmt:
		for _, statement := range node.List {
			if omissible(statement) {
				g.add(statement, statement, "if false { "+g.of(statement)+" }")
			}
		}
	}
	return true
}

// binary replaces an operator, and drops one side of a logical one.
func (g *generator) binary(node *ast.BinaryExpr) {
	to, found := swapped[node.Op]
	if !found {
		return
	}
	left, right := g.of(node.X), g.of(node.Y)
	g.add(node, node, "("+left+" "+to.String()+" "+right+")")
	if node.Op == token.LAND || node.Op == token.LOR {
		g.add(node, node, left)
		g.add(node, node, right)
	}
}

// isLog reports whether a call writes or configures the log, which no test reads.
func isLog(call *ast.CallExpr) bool {
	for within := ast.Node(call); ; {
		switch node := within.(type) {
		case *ast.CallExpr:
			within = node.Fun
		case *ast.SelectorExpr:
			within = node.X
		case *ast.Ident:
			return node.Name == "klog" || node.Name == "logger"
		default:
			return false
		}
	}
}

func isLogLine(statement ast.Stmt) bool {
	line, ok := statement.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := line.X.(*ast.CallExpr)
	return ok && isLog(call)
}

// isPlain reports whether an expression is a name or a field.
func isPlain(expression ast.Expr) bool {
	switch one := expression.(type) {
	case *ast.Ident:
		return one.Name != "nil"
	case *ast.SelectorExpr:
		return isPlain(one.X)
	}
	return false
}

// omissible reports whether the program may compile without a statement: a call other than panic, or an assignment.
func omissible(statement ast.Stmt) bool {
	switch one := statement.(type) {
	case *ast.ExprStmt:
		call, ok := one.X.(*ast.CallExpr)
		if !ok || isLog(call) {
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
