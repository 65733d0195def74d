package main

import (
	"go/parser"
	"go/token"
	"testing"

	"github.com/stretchr/testify/require"
)

const program = `package p

func f(a, b int, p pair) bool {
	a++
	if a < b && b != limit {
		g(p.left, p.right, 5*time.Second)
		return true
	}
	switch {
	case x == a:
		logger.Info(a, b)
		return false
	}
	x = b
	panic(x)
}
`

func TestEachKindOfChangeIsGenerated(t *testing.T) {
	all, err := generate("p.go", []byte(program))
	require.NoError(t, err)
	var changes []string
	for _, one := range all {
		changes = append(changes, one.was+" → "+one.is)
		_, err := parser.ParseFile(token.NewFileSet(), "p.go", one.apply([]byte(program)), parser.SkipObjectResolution)
		require.NoError(t, err, one)
	}
	require.ElementsMatch(t, []string{
		"a++ → if false { a++ }", "a < b && b != limit → (a < b || b != limit)", "a < b → (a <= b)", "b != limit → (b == limit)",
		"a < b && b != limit → a < b", "a < b && b != limit → b != limit",
		"g(p.left, p.right, 5*time.Second) → if false { g(p.left, p.right, 5*time.Second) }", "p.left, p.right → p.right, p.left",
		"5 → (2*5 + 1)", "true → !true", "false → !false", "x = b → if false { x = b }", "x == a → (x != a)", "x == a → false && (x == a)",
	}, changes)
}

func TestEachRevertApplies(t *testing.T) {
	all, err := readReverts("../sim/testdata/reverts")
	require.NoError(t, err)
	for _, one := range all {
		t.Run(one.name, func(t *testing.T) {
			require.NotEmpty(t, one.title)
			require.NoError(t, one.apply(t.Context(), "../..", "--check"), "the code has changed: write the patch anew")
		})
	}
}
