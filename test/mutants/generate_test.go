package main

import (
	"go/parser"
	"go/token"
	"testing"

	"github.com/stretchr/testify/require"
)

const program = `package p

import (
	"fmt"
)

const limit = 1 + 2

func f(a, b int) bool {
	a++
	if a < b && b != limit {
		fmt.Println(a)
		return true
	}
	x := a
	x = b
	return x == a
}
`

func TestEachKindOfChangeIsGenerated(t *testing.T) {
	all, err := generate("p.go", []byte(program))
	require.NoError(t, err)
	var changes []string
	for _, one := range all {
		changes = append(changes, one.was+" → "+one.is)
	}
	require.ElementsMatch(t, []string{
		"a++ → nothing", "a < b && b != limit → a < b || b != limit", "a < b → a <= b", "b != limit → b == limit",
		"fmt.Println(a) → nothing", "true → !true", "x = b → nothing", "x == a → x != a",
	}, changes)
}

func TestMutantsThatOverlapAreNotInOneProgram(t *testing.T) {
	all, err := generate("p.go", []byte(program))
	require.NoError(t, err)
	apart := separate(all)
	require.Len(t, apart, 6, "the comparisons are within the conjunction")
	for i := range apart {
		apart[i].number = i + 1
	}
	changed := instrument([]byte(program), "example.com/m", apart)
	_, err = parser.ParseFile(token.NewFileSet(), "p.go", changed, parser.SkipObjectResolution)
	require.NoError(t, err, "%s", changed)
	require.Contains(t, string(changed), `"example.com/m/mutants"`)
	require.Contains(t, string(changed), "func() bool { if mutants.Is(3) { return a < b || b != limit }; return a < b && b != limit }()")
}
