package docs

import (
	"go/ast"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What README.md says that a message says, the program says.
func TestMessagesInTroubleshootingExist(t *testing.T) {
	var said strings.Builder
	for _, folder := range folders(t) {
		for _, file := range sources(t, folder) {
			for node := range ast.Preorder(file) {
				if value, is := text(node); is {
					said.WriteString(value + "\n")
				}
			}
		}
	}
	quoted := 0
	for _, row := range rows(readme(t).section(t, "Troubleshooting")) {
		require.Len(t, row, 3, row[0])
		for _, part := range codes(row[0]) {
			require.Contains(t, said.String(), part, "README.md: no message of the program has %q", part)
			quoted++
		}
	}
	require.NotZero(t, quoted)
}
