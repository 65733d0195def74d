package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"iter"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// terms maps a homely word to the standard term that an identifier of the product uses instead.
func terms() map[string]string {
	return map[string]string{
		"wake": "enqueue", "wakes": "enqueue", "woken": "enqueued",
		"again": "requeue or retry",
		"told":  "reported", "said": "reported", "says": "message", "heard": "observed", "saw": "observe",
		"hopeless": "terminal", "unseen": "unreadable", "made": "created",
		"words": "format or message", "sentences": "messages", "story": "timeline", "scene": "scenario", "scenery": "setup",
		"obstacle": "blocker", "hindered": "createFailed", "trouble": "diagnosis", "mine": "own", "stranger": "recreated",
		"recollection": "entry", "patience": "timeout", "rehearse": "dryRun", "wish": "wanted",
		"parting": "disposal", "seldom": "interval", "candidates": "pending", "lane": "fifo", "talk": "eventWatch", "conversation": "eventWatch",
		"custody": "owner", "judge": "evaluate", "judged": "evaluated", "sight": "view", "sighting": "podState", "tally": "counts",
		"rung": "step", "rungs": "steps", "climb": "handover", "spoils": "invalidates", "complaints": "validationErrors",
		"stand": "campaign", "surely": "confirm", "unserved": "unattended", "agentless": "unattended", "mischief": "faults", "weather": "faults",
	}
}

// standard lists the identifiers where such a word has another meaning: a coordinator stands in for an agent.
func standard() []string {
	return []string{"standInBlocker"}
}

// TestIdentifiersAreStandardTerms keeps homely words out of the identifiers of the product.
func TestIdentifiersAreStandardTerms(t *testing.T) {
	word := regexp.MustCompile(`[A-Z]+[a-z]*|[a-z]+`)
	banned := terms()
	var found []string
	for file, positions := range productFiles(t) {
		for node := range ast.Preorder(file) {
			name, is := node.(*ast.Ident)
			if !is || slices.Contains(standard(), name.Name) {
				continue
			}
			for _, part := range word.FindAllString(name.Name, -1) {
				if term := banned[strings.ToLower(part)]; term != "" {
					found = append(found, fmt.Sprintf("%s: %s: use %s", positions.Position(name.Pos()), name.Name, term))
				}
			}
		}
	}
	require.Empty(t, found)
}

// productFiles parses the files of the product, without tests.
func productFiles(t *testing.T) iter.Seq2[*ast.File, *token.FileSet] {
	t.Helper()
	return func(yield func(*ast.File, *token.FileSet) bool) {
		files := token.NewFileSet()
		require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			switch {
			case err != nil:
				return err
			case entry.IsDir() && slices.Contains([]string{"test", "bin", ".git"}, entry.Name()):
				return fs.SkipDir
			case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			require.NoError(t, err)
			if !yield(file, files) {
				return fs.SkipAll
			}
			return nil
		}))
	}
}
