package main

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// mutant is one change of one line.
type mutant struct {
	number     int    // of the program's, from 1
	file       string // relative to the root
	line       int
	function   *ast.FuncDecl
	was, is    string
	start, end int  // offsets of what is replaced
	from, to   int  // lines of the changed copy of the function
	omitted    bool // does not compile, or changes nothing
}

// String returns where a mutant is and what it changes.
func (m mutant) String() string {
	was, _, _ := strings.Cut(m.was, "\n")
	is, _, _ := strings.Cut(m.is, "\n")
	return fmt.Sprintf("%s %s: %s → %s", m.file, m.function.Name, was, is)
}

// swapped are the operators that a mutant replaces.
var swapped = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND,
}

// symmetric are the names of functions whose arguments may be in any order.
var symmetric = regexp.MustCompile(`^(min|max|.*Equal)$`)

// source is a file of the program.
type source struct {
	name     string
	text     []byte
	files    *token.FileSet
	syntax   *ast.File
	function *ast.FuncDecl // that is read
	mutants  []*mutant
}

// generate reads the packages below directories and finds their mutants.
func (p *program) generate(context.Context) error {
	for _, dir := range p.dirs {
		err := filepath.WalkDir(filepath.Join(p.root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(p.root, path)
			if err != nil {
				return err
			}
			if p.sources[name], err = read(name, text); err != nil {
				return err
			}
			for _, m := range p.sources[name].mutants {
				p.mutants = append(p.mutants, m)
				m.number = len(p.mutants)
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("generate mutants of %s: %w", dir, err)
		}
	}
	return p.omitEquivalent()
}

// omitEquivalent omits the mutants of a list, which tests cannot find.
func (p *program) omitEquivalent() error {
	const list = "test/mutants/equivalent.txt"
	text, err := os.ReadFile(filepath.Join(p.root, list))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		file, _, _ := strings.Cut(line, " ")
		if p.sources[file] == nil {
			continue // a comment, or another package
		}
		var lines []int
		for _, m := range p.sources[file].mutants {
			if m.String() == line {
				m.omitted, lines = true, append(lines, m.line)
			}
		}
		if lines = slices.Compact(lines); len(lines) != 1 {
			return fmt.Errorf("%s: want a mutant of one line, got lines %v: %s", list, lines, line)
		}
	}
	return nil
}

// read finds all mutants of a file: swapped comparisons, logical operators and arguments, dropped alternatives, changed
// numbers, returned truth values that are inverted, and calls and assignments that are left out. Some of them do not compile.
func read(name string, text []byte) (*source, error) {
	files := token.NewFileSet()
	syntax, err := parser.ParseFile(files, name, text, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	s := &source{name: name, text: text, files: files, syntax: syntax}
	for _, declaration := range syntax.Decls {
		if function, ok := declaration.(*ast.FuncDecl); ok && function.Body != nil {
			s.function = function
			ast.Inspect(function.Body, s.visit)
		}
	}
	return s, nil
}

// withMutants returns the file, in which each function begins with its changed copies that compile.
func (s *source) withMutants() []byte {
	var out bytes.Buffer
	at := s.offset(s.syntax.Name.End())
	fmt.Fprintf(&out, "%s; import _mutant %q", s.text[:at], module+"mutant")
	for i, m := range s.mutants {
		function := m.function
		start, end := s.offset(function.Body.Lbrace)+1, s.offset(function.Body.Rbrace)
		if i == 0 || s.mutants[i-1].function != function {
			fmt.Fprintf(&out, "%s\nswitch _mutant.On {\n", s.text[at:start])
			at = start
		}
		if !m.omitted {
			m.from = bytes.Count(out.Bytes(), []byte("\n")) + 1
			results, call := "", "%s(); return"
			if function.Type.Results != nil {
				results, call = s.of(function.Type.Results), "return %s()"
			}
			body := slices.Concat(s.text[start:m.start], []byte(m.is), s.text[m.end:end])
			fmt.Fprintf(&out, "case %d: "+call+"\n", m.number, fmt.Sprintf("func() %s {%s}", results, body))
			m.to = bytes.Count(out.Bytes(), []byte("\n"))
		}
		if i == len(s.mutants)-1 || s.mutants[i+1].function != function {
			out.WriteString("}\n")
		}
	}
	fmt.Fprintf(&out, "%s\nvar _ = _mutant.On\n", s.text[at:])
	return out.Bytes()
}

// drop leaves out the mutant whose copy has a line. It reports whether there is one.
func (s *source) drop(line int) bool {
	at := slices.IndexFunc(s.mutants, func(m *mutant) bool { return !m.omitted && m.from <= line && line <= m.to })
	if at >= 0 {
		s.mutants[at].omitted = true
	}
	return at >= 0
}

func (s *source) offset(pos token.Pos) int { return s.files.Position(pos).Offset }

func (s *source) of(node ast.Node) string {
	return string(s.text[s.offset(node.Pos()):s.offset(node.End())])
}

// add adds a mutant that replaces what is from one node to another.
func (s *source) add(from, to ast.Node, is string) {
	start, end := s.files.Position(from.Pos()), s.files.Position(to.End())
	s.mutants = append(s.mutants, &mutant{
		file: s.name, line: start.Line, function: s.function,
		was: string(s.text[start.Offset:end.Offset]), is: is, start: start.Offset, end: end.Offset,
	})
}

// visit adds the mutants of a node, and reports whether those within it are wanted too.
func (s *source) visit(node ast.Node) bool {
	switch node := node.(type) {
	case *ast.BasicLit:
		switch {
		case node.Value == "0": // a second where it is a duration: a nanosecond more or less changes nothing
			s.add(node, node, "(1 << 30)")
		case node.Kind == token.INT || node.Kind == token.FLOAT:
			s.add(node, node, "(2*"+node.Value+" + 1)")
		}
	case *ast.BinaryExpr:
		s.binary(node)
	case *ast.CallExpr:
		if isLog(node) {
			return false
		}
		for i := 1; i < len(node.Args) && !symmetric.MatchString(s.of(node.Fun)); i++ {
			if a, b := node.Args[i-1], node.Args[i]; isPlain(a) && isPlain(b) && s.of(a) != s.of(b) {
				s.add(a, b, s.of(b)+", "+s.of(a))
			}
		}
	case *ast.IfStmt: // a condition of log lines alone
		return node.Else != nil || slices.ContainsFunc(node.Body.List, func(statement ast.Stmt) bool { return !isLogLine(statement) })
	case *ast.SwitchStmt:
		for _, statement := range node.Body.List {
			if clause, ok := statement.(*ast.CaseClause); ok && node.Tag == nil && len(clause.List) == 1 {
				s.add(clause.List[0], clause.List[0], "false && ("+s.of(clause.List[0])+")")
			}
		}
	case *ast.CaseClause: // that does nothing, as the values of the switch that it does not list
		return len(node.Body) > 0
	case *ast.ReturnStmt:
		if last := len(node.Results) - 1; last > 0 && s.of(node.Results[last]) == "err" {
			return false // nobody reads what is beside an error
		}
		for _, value := range node.Results {
			if name, ok := value.(*ast.Ident); ok && (name.Name == "true" || name.Name == "false") {
				s.add(name, name, "!"+name.Name)
			}
		}
	case *ast.BlockStmt:
		for _, statement := range node.List {
			if omissible(statement) {
				s.add(statement, statement, "if false { "+s.of(statement)+" }")
			}
		}
	}
	return true
}

// binary replaces an operator, and drops one side of a logical one.
func (s *source) binary(node *ast.BinaryExpr) {
	to, found := swapped[node.Op]
	if !found {
		return
	}
	left, right := s.of(node.X), s.of(node.Y)
	s.add(node, node, "("+left+" "+to.String()+" "+right+")")
	if node.Op == token.LAND || node.Op == token.LOR {
		s.add(node, node, left)
		s.add(node, node, right)
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
			return slices.Contains([]string{"klog", "logger", "warn", "warnOf"}, node.Name)
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
