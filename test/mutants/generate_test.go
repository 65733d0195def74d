package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

const program = `package p

import (
	"time"
)

const limit = 1 + 2

type pair struct{ left, right string }

func f(a, b int, p pair) bool {
	a++
	if a < b && b != limit {
		g(p.left, p.right, 5*time.Second)
		return true
	}
	x := a
	x = b
	switch {
	case x == a:
		return p == pair{}
	}
	return false
}

var logger log

type log struct{}

func (log) Info(string, string) {}

func g(left, right string, _ time.Duration) {
	if left != right {
		logger.Info(left, right)
	}
}
`

// generated returns the mutants of the program.
func generated(t *testing.T) []mutant {
	t.Helper()
	root := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(root, "p"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "go.mod"), []byte("module example.com/m\n\ngo 1.26\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "p", "p.go"), []byte(program), 0o600))
	sources, err := load(t.Context(), root, []string{"p"})
	require.NoError(t, err)
	require.Len(t, sources, 1)
	return generate(sources[0])
}

func TestEachKindOfChangeIsGenerated(t *testing.T) {
	var changes []string
	for _, one := range generated(t) {
		changes = append(changes, one.was+" → "+one.is)
	}
	require.ElementsMatch(t, []string{
		"a++ → nothing", "a < b && b != limit → a < b || b != limit", "a < b → a <= b", "b != limit → b == limit",
		"a < b && b != limit → a < b", "a < b && b != limit → b != limit", "limit → 2 * limit + 1",
		"g(p.left, p.right, 5*time.Second) → nothing", "p.left, p.right → p.right, p.left", "5*time.Second → 2 * 5*time.Second + 1",
		"true → !true", "false → !false", "x = b → nothing", "x == a → x != a", "x == a → never", "p == pair{} → p != pair{}",
	}, changes)
}

func TestMutantsThatOverlapAreNotInOneProgram(t *testing.T) {
	apart := separate(generated(t))
	for i := range apart {
		apart[i].number = i + 1
		for _, other := range apart[:i] {
			require.True(t, other.end <= apart[i].start || apart[i].end <= other.start)
		}
	}
	changed := instrument([]byte(program), "example.com/m", apart)
	_, err := parser.ParseFile(token.NewFileSet(), "p.go", changed, parser.SkipObjectResolution)
	require.NoError(t, err, "%s", changed)
	require.Contains(t, string(changed), `"example.com/m/mutants"`)
	require.Contains(t, string(changed), "func() bool { if mutants.Is(3) { return a < b || b != limit }; return a < b && b != limit }()")
}
