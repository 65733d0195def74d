// Command mutants changes a copy of the program and counts how many of the changes the tests find. It generates mutants,
// which change a single line, or it reverts fixes.
package main

import (
	"context"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

func main() {
	count := flag.Int("count", 100, "mutants")
	seed := flag.Uint64("seed", 0, "chooses the mutants; 0: random")
	runs := flag.Int("runs", 200, "schedules of the simulation for each change that the unit tests do not find; 0: unit tests alone")
	root := flag.String("root", "..", "directory of the program")
	packages := flag.String("packages", "reconcile,exposer,informers,deploy,metrics,cmd/lateen/agent,cmd/lateen/config,cmd/lateen/startup", "directories whose packages are changed")
	reverts := flag.String("reverts", "", "directory of patches, each of which reverts a fix: they are played instead of mutants")
	names := flag.String("names", "", "names of the patches, separated by commas; default: all")
	flag.Parse()
	work := func(ctx context.Context, root string) error {
		if *seed == 0 {
			*seed = 1 + rand.Uint64N(1<<63)
		}
		fmt.Printf("seed %d\n", *seed)
		return measure(ctx, root, strings.Split(*packages, ","), *seed, *count, *runs)
	}
	if *reverts != "" {
		work = func(ctx context.Context, root string) error { return playReverts(ctx, root, *reverts, *names, *runs) }
	}
	if err := inCopy(context.Background(), *root, work); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// inCopy calls a function with a copy of the program, and removes the copy.
func inCopy(ctx context.Context, source string, work func(ctx context.Context, root string) error) error {
	root, err := os.MkdirTemp("", "lateen-mutants-")
	if err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer os.RemoveAll(root)
	archive := exec.CommandContext(ctx, "sh", "-c", `git -C "$0" ls-files -z -- "$(git -C "$0" rev-parse --show-toplevel)" | tar -C "$0" --null -cf - -T - | tar -xf - -C "$1"`, source, root)
	if output, err := archive.CombinedOutput(); err != nil {
		return fmt.Errorf("copy the program: %w\n%s", err, output)
	}
	return work(ctx, root)
}

// goTest runs `go test` in a directory with more arguments. It returns the output, and whether all tests passed.
func goTest(ctx context.Context, dir string, args ...string) (output string, passed bool) {
	test := exec.CommandContext(ctx, "go", append([]string{"test", "-vet=off"}, args...)...)
	test.Dir = dir
	text, err := test.CombinedOutput()
	return string(text), err == nil
}

// measure changes the program, one mutant after the other, until so many count. Those that do not compile or that no unit test
// reaches do not.
func measure(ctx context.Context, root string, packages []string, seed uint64, count, runs int) error {
	reached, err := coverage(ctx, root, packages)
	if err != nil {
		return err
	}
	all, err := generateAll(root, packages)
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(seed, seed)) //nolint:gosec // a seed repeats it
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	fmt.Printf("%d mutants are possible\n", len(all))
	ended, total, unreached := map[string]int{}, 0, 0
	for _, one := range all {
		if total == count {
			break
		}
		if !reached[place{one.file, one.line}] {
			unreached++
			continue
		}
		how, err := one.play(ctx, root, runs)
		if err != nil {
			return err
		}
		if how == notCompiled {
			continue
		}
		total++
		if ended[how]++; how == survived {
			fmt.Printf("survived: %s\n", one)
		}
	}
	fmt.Printf("%d of %d mutants were found: %d by unit tests, %d by the simulation, %d by conformance; %d more are in lines that no unit test reaches\n",
		total-ended[survived], total, ended[byUnitTests], ended[bySimulation], ended[byConformance], unreached)
	return nil
}

// How a change ended.
const (
	notCompiled   = "not compiled"
	byUnitTests   = "unit tests"
	bySimulation  = "simulation"
	byConformance = "conformance"
	survived      = "survived"
)

// play writes a mutant into the program, and undoes it after the tests.
func (m mutant) play(ctx context.Context, root string, runs int) (how string, err error) {
	path := filepath.Join(root, m.file)
	text, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	defer func() {
		if undone := os.WriteFile(path, text, 0o600); err == nil {
			err = undone
		}
	}()
	if err := os.WriteFile(path, slices.Concat(text[:m.start], []byte(m.is), text[m.end:]), 0o600); err != nil {
		return "", err
	}
	return find(ctx, root, []string{"./" + filepath.Dir(m.file)}, "-skip=AnyStep|AnyRequestMayFail", runs) // as make test
}

// find returns the first tests that fail: those of the packages that have changed, of all packages, some of the simulation, or
// the conformance cases on the embedded cluster.
func find(ctx context.Context, root string, changed []string, simulation string, runs int) (how string, err error) {
	const limit = "-timeout=3m" // a change that makes tests hang counts as found
	for _, packages := range [][]string{changed, {"./..."}} {
		switch output, passed := goTest(ctx, root, append([]string{limit, "-failfast"}, packages...)...); {
		case strings.Contains(output, "[build failed]"):
			return notCompiled, nil
		case !passed:
			return byUnitTests, nil
		}
	}
	if runs == 0 {
		return survived, nil
	}
	suite := filepath.Join(root, "test")
	if _, passed := goTest(ctx, suite, "-timeout=20m", "-failfast", simulation, "./sim", "-first", "-runs", strconv.Itoa(runs)); !passed {
		return bySimulation, nil
	}
	bin := filepath.Join(root, "bin")
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(bin, "lateen"), "./cmd/lateen")
	build.Dir = root
	if output, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the program: %w\n%s", err, output)
	}
	if err := os.Setenv("LATEEN_BIN", bin); err != nil {
		return "", err
	}
	if _, passed := goTest(ctx, suite, "-timeout=20m", "-run=TestTheAgentConforms", "-parallel=16", "./embedded"); !passed {
		return byConformance, nil
	}
	return survived, nil
}

// place is a line of a file of the program.
type place struct {
	file string
	line int
}

// coverage returns the lines of packages that unit tests reach.
func coverage(ctx context.Context, root string, packages []string) (map[place]bool, error) {
	profile := filepath.Join(root, "coverage")
	changed := "./" + strings.Join(packages, "/...,./") + "/..."
	if output, passed := goTest(ctx, root, "-coverpkg="+changed, "-coverprofile="+profile, "./..."); !passed {
		return nil, fmt.Errorf("the tests fail without a mutant:\n%s", output)
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return nil, err
	}
	const module = "github.com/lateen-project/lateen/"
	reached := map[place]bool{}
	for line := range strings.Lines(string(text)) {
		file, block, _ := strings.Cut(strings.TrimPrefix(line, module), ":")
		var from, to, column, statements, times int
		if _, err := fmt.Sscanf(block, "%d.%d,%d.%d %d %d", &from, &column, &to, &column, &statements, &times); err != nil || times == 0 {
			continue // the first line has the mode
		}
		for ; from <= to; from++ {
			reached[place{file, from}] = true
		}
	}
	return reached, nil
}

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
		switch {
		case node.Value == "0": // a second where it is a duration: a nanosecond more or less changes nothing
			g.add(node, node, "(1 << 30)")
		case node.Kind == token.INT || node.Kind == token.FLOAT:
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
