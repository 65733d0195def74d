package docs

import (
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lateen-project/lateen/exposer/objects"
)

// lossReasons are the declared ones, by the name of the constant.
func lossReasons(t *testing.T) map[string]objects.LossReason {
	t.Helper()
	declared := map[string]objects.LossReason{}
	for _, file := range sources(t, "exposer/objects") {
		for node := range ast.Preorder(file) {
			constant, is := node.(*ast.ValueSpec)
			if !is || len(constant.Values) != 1 || !strings.HasPrefix(constant.Names[0].Name, "Lost") {
				continue
			}
			if value, is := text(constant.Values[0]); is {
				declared[constant.Names[0].Name] = objects.LossReason(value)
			}
		}
	}
	return declared
}

// A loss reason that is not listed has no series before it happens.
func TestEveryLossReasonIsListed(t *testing.T) {
	require.ElementsMatch(t, slices.Collect(maps.Values(lossReasons(t))), objects.LostReasons())
}

func TestEveryLossReasonIsSet(t *testing.T) {
	set := map[string]bool{}
	for _, file := range append(sources(t, "exposer/objects"), sources(t, "reconcile/transfer")...) {
		for node := range ast.Preorder(file) {
			var values []ast.Expr
			switch node := node.(type) {
			case *ast.AssignStmt:
				values = node.Rhs
			case *ast.KeyValueExpr:
				values = []ast.Expr{node.Value}
			}
			for _, value := range values {
				for each := range ast.Preorder(value) {
					if name, is := each.(*ast.Ident); is {
						set[name.Name] = true
					}
				}
			}
		}
	}
	for name := range lossReasons(t) {
		require.Truef(t, set[name], "no mover is lost for %s", name)
	}
}

// The alert names the reason, and its runbook says what to do.
func TestEveryLossReasonIsInTheRunbook(t *testing.T) {
	_, runbook, found := strings.Cut(read(t, root+"/docs/runbooks.md").text, "\n## LateenMoversRestart\n")
	require.True(t, found)
	runbook, _, _ = strings.Cut(runbook, "\n## ")
	for name, reason := range lossReasons(t) {
		require.Containsf(t, runbook, "`"+string(reason)+"`", "the runbook of LateenMoversRestart lacks %s", name)
	}
}
