package docs

import (
	"go/ast"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every message that docs/troubleshooting.md quotes is one of the program.
func TestMessagesInTroubleshootingExist(t *testing.T) {
	var reported strings.Builder
	for _, folder := range folders(t) {
		for _, file := range sources(t, folder) {
			for node := range ast.Preorder(file) {
				if value, is := text(node); is {
					reported.WriteString(value + "\n")
				}
			}
		}
	}
	quoted := 0
	for _, row := range rows(page(t, "troubleshooting").section(t, "Troubleshooting")) {
		require.Len(t, row, 3, row[0])
		for _, part := range codes(row[0]) {
			require.Contains(t, reported.String(), part, "docs/troubleshooting.md: no message of the program has %q", part)
			quoted++
		}
	}
	require.NotZero(t, quoted)
}
