package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/token"
	"slices"
	"strconv"
	"strings"
)

// mutant is one change of one line. The changed program has both versions; the environment selects one.
type mutant struct {
	number     int
	file       string // relative to the root
	line       int
	was, is    string // for people
	start, end int    // offsets of what is replaced
	text       string // replacement, with a place for the number
}

// number is the place of a mutant's number in its text.
const number = "MUTANT"

// swapped are the operators that a mutant replaces.
var swapped = map[token.Token]token.Token{
	token.EQL: token.NEQ, token.NEQ: token.EQL, token.LSS: token.LEQ, token.LEQ: token.LSS, token.GTR: token.GEQ, token.GEQ: token.GTR,
	token.LAND: token.LOR, token.LOR: token.LAND,
}

// generator collects the mutants of a file.
type generator struct {
	source
	all []mutant
}

// generate returns all mutants of a file: swapped comparisons, logical operators and arguments, dropped alternatives, changed
// numbers, returned truth values that are inverted, and calls and assignments that are left out.
func generate(s source) []mutant {
	g := &generator{source: s}
	for _, declaration := range s.syntax.Decls {
		if function, ok := declaration.(*ast.FuncDecl); ok && function.Body != nil {
			ast.Inspect(function.Body, g.visit)
		}
	}
	return g.all
}

func (g *generator) code(from, to token.Pos) string {
	return string(g.text[g.files.Position(from).Offset:g.files.Position(to).Offset])
}

func (g *generator) of(node ast.Node) string { return g.code(node.Pos(), node.End()) }

// add adds a mutant that replaces what is between two positions.
func (g *generator) add(from, to token.Pos, is, replacement string) {
	was, _, _ := strings.Cut(g.code(from, to), "\n")
	g.all = append(g.all, mutant{
		file: g.path, line: g.files.Position(from).Line, was: was, is: is, text: replacement,
		start: g.files.Position(from).Offset, end: g.files.Position(to).Offset,
	})
}

// visit adds the mutants of a node, and reports whether those within it are wanted too.
func (g *generator) visit(node ast.Node) bool {
	if expression, ok := node.(ast.Expr); ok {
		if name, ok := g.isNumber(expression); ok {
			was := g.of(node)
			g.add(node.Pos(), node.End(), "2 * "+was+" + 1", "mutants.Changed["+name+"]("+number+", "+was+")")
			return false
		}
	}
	switch node := node.(type) {
	case *ast.GenDecl:
		return node.Tok != token.CONST
	case *ast.ArrayType:
		return false
	case *ast.CompositeLit: // an index must be constant
		for _, element := range node.Elts {
			if pair, ok := element.(*ast.KeyValueExpr); ok {
				element = pair.Value
			}
			ast.Inspect(element, g.visit)
		}
		return false
	case *ast.BinaryExpr:
		g.binary(node)
	case *ast.CallExpr:
		return !isLog(node) && g.call(node)
	case *ast.IfStmt: // a condition of log lines alone
		return node.Else != nil || slices.ContainsFunc(node.Body.List, func(statement ast.Stmt) bool { return !isLogLine(statement) })
	case *ast.SwitchStmt:
		if node.Tag == nil {
			g.cases(node)
		}
	case *ast.CaseClause: // that does nothing, as the values of the switch that it does not list
		return len(node.Body) > 0
	case *ast.ReturnStmt:
		for _, value := range node.Results {
			if name, ok := value.(*ast.Ident); ok && (name.Name == "true" || name.Name == "false") {
				g.add(name.Pos(), name.End(), "!"+name.Name, "(mutants.Is("+number+") != "+name.Name+")")
			}
		}
	case *ast.BlockStmt:
		for _, statement := range node.List {
			if omissible(statement) {
				g.add(statement.Pos(), statement.End(), "nothing", "if !mutants.Is("+number+") {\n"+g.of(statement)+"\n}")
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
	replacements := []string{left + " " + to.String() + " " + right}
	if node.Op == token.LAND || node.Op == token.LOR {
		replacements = append(replacements, left, right)
	}
	for _, is := range replacements {
		g.add(node.Pos(), node.End(), is, "func() bool { if mutants.Is("+number+") { return "+is+" }; return "+g.of(node)+" }()")
	}
}

// call swaps arguments.
func (g *generator) call(node *ast.CallExpr) bool {
	for i := 1; i < len(node.Args); i++ {
		a, b := node.Args[i-1], node.Args[i]
		if isPlain(a) && isPlain(b) && g.of(a) != g.of(b) && g.alike(a, b) {
			left, right := g.of(a), g.of(b)
			g.add(a.Pos(), b.End(), right+", "+left, "mutants.Either("+number+", "+left+", "+right+"), mutants.Either("+number+", "+right+", "+left+")")
		}
	}
	return true
}

// cases drops each alternative of a switch without a tag.
func (g *generator) cases(node *ast.SwitchStmt) {
	for _, statement := range node.Body.List {
		if clause, ok := statement.(*ast.CaseClause); ok && len(clause.List) == 1 {
			condition := clause.List[0]
			g.add(condition.Pos(), condition.End(), "never", "!mutants.Is("+number+") && ("+g.of(condition)+")")
		}
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

// isPlain reports whether an expression is a name or a field, which may be evaluated twice.
func isPlain(expression ast.Expr) bool {
	switch one := expression.(type) {
	case *ast.Ident:
		return true
	case *ast.SelectorExpr:
		return isPlain(one.X)
	}
	return false
}

// omissible reports whether the program compiles without a statement: a call other than panic, or an assignment.
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
		replacement := strings.ReplaceAll(one.text, number, strconv.Itoa(one.number))
		source = slices.Concat(source[:one.start], []byte(replacement), source[one.end:])
	}
	return bytes.Replace(source, []byte("\nimport ("), []byte("\nimport (\n\t"+fmt.Sprintf("%q", module+"/mutants")+"\n"), 1)
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

// Changed returns another number if a mutant is active.
func Changed[N ~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64](mutant int, number N) N {
	if Is(mutant) {
		return 2*number + 1
	}
	return number
}

// Either returns the second value if a mutant is active, and the first one otherwise.
func Either[T any](mutant int, first, second T) T {
	if Is(mutant) {
		return second
	}
	return first
}

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
